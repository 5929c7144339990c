#pragma once

#include <torch/version.h>

// Every difference between the torch versions that the sources must know about.

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 14
#error "ringcomm supports torch 2.11 to 2.14"
#endif

// 2.14 clones options in C++ when a group is split; before, Python copies them.
#if TORCH_VERSION_MINOR >= 14
#define RC_CLONE_OVERRIDE override
#else
#define RC_CLONE_OVERRIDE
#endif
