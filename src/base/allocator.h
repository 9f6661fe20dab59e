// What the process's allocator keeps of freed memory. Nothing here changes what a program computes.
// glibc alone; elsewhere both do nothing.
#pragma once

namespace vericache {

// For programs, once, before threads begin: blocks of 256 KiB and more are mapped by themselves
// and given back when they are freed. By itself glibc learns to carve them out of its heap, where
// one small neighbour keeps freed pages resident: 17 MiB beyond a budget of 96 with eight requests.
void MapLargeBlocks();

// Free pages of the heap go back to the system. COST: milliseconds.
void ReturnFreedMemory();

}  // namespace vericache
