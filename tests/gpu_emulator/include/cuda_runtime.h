// Stands where CUDA's <cuda_runtime.h> would: what kernels and host code of this project use of it, for an ordinary C++
// compiler. Names and meanings are CUDA's.
#pragma once

#include "emulated/types.h"

#include "emulated/device.h"
#include "emulated/host.h"
