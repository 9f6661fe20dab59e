// How each ISA's object files fill their part of the table (internal to kernels/).
//
// Every unit defines one of these functions in namespace vericache::VC_KERNEL_NS.
#pragma once

#include "kernels/kernels.h"

#define VC_DECLARE_KERNEL_PARTS(ns)            \
  namespace vericache::ns {                    \
  void FillMatmul(KernelTable* table);         \
  void FillRows(KernelTable* table);           \
  void FillAttention(KernelTable* table);      \
  void FillDraftAttention(KernelTable* table); \
  void FillDraftEncode(KernelTable* table);    \
  }

VC_DECLARE_KERNEL_PARTS(scalar_baseline)
VC_DECLARE_KERNEL_PARTS(scalar_fma)
VC_DECLARE_KERNEL_PARTS(avx2)
VC_DECLARE_KERNEL_PARTS(avx512)
