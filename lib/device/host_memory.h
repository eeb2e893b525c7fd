// Memory of the host. The first touch of a small page costs far more than writing it, so large pieces come in huge
// pages.
#pragma once

#include <cstdint>

namespace quintet::device {

// Bytes that this node, or the container that we run in, can still give; no bound where the kernel does not say.
int64_t available_host_memory();

// `bytes` zeroed bytes, 64-byte aligned. From 2 MiB on they are mapped in whole huge pages, which are zero without
// being touched. Null if the system has no more.
void* allocate_host(int64_t bytes);
// `bytes` as given to allocate_host.
void release_host(void* memory, int64_t bytes);

}  // namespace quintet::device
