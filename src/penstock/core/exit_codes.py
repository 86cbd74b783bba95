"""Exit codes of the `penstock` command: 0, 1, 2, the sysexits of configuration, and mosquitto's for its clients."""

OK = 0
FAILURE = 1
USAGE = 2
NOT_RUN = 3  # of `bench`: no broker there, or it refuses what the test needs
CONFIGURATION = 78  # EX_CONFIG of sysexits.h
TIMEOUT = 27  # MOSQ_ERR_TIMEOUT: what mosquitto_sub -W answers
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
