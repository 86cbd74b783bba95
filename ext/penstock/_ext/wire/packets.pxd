# The rarer packets as Python objects. Every parser takes the body (what follows the fixed header) as bytes or another
# buffer, copies what it keeps and raises ProtocolViolation.
from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef class WillPacket:
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly bytes props           # forwardable properties, encoded, without their length
    cdef readonly object expiry         # seconds, None = never
    cdef readonly uint32_t delay        # seconds
    cdef readonly uint8_t qos
    cdef readonly bint retain


cdef class ConnectPacket:
    cdef readonly str protocol_name
    cdef readonly str client_id
    cdef readonly str username          # None if absent, as are the four below
    cdef readonly bytes password
    cdef readonly WillPacket will
    cdef readonly str authentication_method
    cdef readonly bytes authentication_data
    cdef readonly object session_expiry     # None if absent
    cdef readonly list user_properties
    cdef readonly uint32_t maximum_packet_size      # 0 = none
    cdef readonly uint16_t keep_alive
    cdef readonly uint16_t receive_maximum
    cdef readonly uint16_t topic_alias_maximum
    cdef readonly uint8_t version
    cdef readonly bint clean_start
    cdef readonly bint request_response_information
    cdef readonly bint request_problem_information
    cdef bint has_properties            # they have been read


cdef class SubscribePacket:
    cdef readonly list entries          # (filter, options, 0 or the reason code that refuses it)
    cdef readonly list user_properties
    cdef readonly uint32_t identifier   # 0 = none
    cdef readonly uint16_t packet_id


cdef class UnsubscribePacket:
    cdef readonly list entries          # (filter, 0 or the reason code that refuses it)
    cdef readonly list user_properties
    cdef readonly uint16_t packet_id


cdef class DisconnectPacket:
    cdef readonly object session_expiry     # None if absent, as are the two below
    cdef readonly str reason_string
    cdef readonly str server_reference
    cdef readonly list user_properties
    cdef readonly uint8_t reason


cdef class AuthPacket:
    cdef readonly str authentication_method     # None only in a server's success without properties
    cdef readonly bytes authentication_data
    cdef readonly str reason_string
    cdef readonly list user_properties
    cdef readonly uint8_t reason


cdef class ConnackPacket:
    cdef readonly dict properties
    cdef readonly uint8_t reason        # 3.x: the return code
    cdef readonly bint session_present


cdef class SubackPacket:
    cdef readonly list reasons          # one for each filter; empty in an UNSUBACK of 3.x
    cdef readonly dict properties
    cdef readonly uint16_t packet_id


cdef class PublishPacket:
    cdef readonly str topic             # "" with an alias
    cdef readonly bytes payload
    cdef readonly dict properties
    cdef readonly uint16_t packet_id
    cdef readonly uint8_t qos
    cdef readonly bint retain
    cdef readonly bint dup
