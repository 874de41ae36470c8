#include "warpool.h"
extern "C" int wp_host_pattern(const wp_pattern *) { return WP_INVALID; }
extern "C" int wp_host_convert(const wp_convert *) { return WP_INVALID; }
