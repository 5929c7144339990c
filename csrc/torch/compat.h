#pragma once

#include <torch/version.h>

// Every difference between the torch versions that the sources must know about.

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 14
#error "ringcomm supports torch 2.11 to 2.14"
#endif

// What is virtual from 2.14 on; before, nobody calls it.
#if TORCH_VERSION_MINOR >= 14
#define RC_OVERRIDE_2_14 override
#else
#define RC_OVERRIDE_2_14
#endif
