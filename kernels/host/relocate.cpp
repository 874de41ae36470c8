#include "warpool.h"
extern "C" int wp_host_relocate(const wp_relocate *) { return WP_INVALID; }
extern "C" int wp_host_slide(const wp_slide *) { return WP_INVALID; }
