"""Who may connect, and what a connected client may publish and receive."""

from penstock.access.acl_file import AclFile
from penstock.access.control import AccessControl
from penstock.access.passwords import PasswordFile

__all__ = ["AccessControl", "AclFile", "PasswordFile"]
