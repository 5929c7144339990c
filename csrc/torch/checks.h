#pragma once

#include "torch/backend.h"
#include "torch/tensors.h"

#include <cstdint>
#include <vector>

// What torch's callers can get wrong, in the words that upstream's tests look for, each with the
// value found and what is allowed. Included by collectives.cpp only.
namespace ringcomm {

inline const at::Tensor& only(const RingBackend::Tensors& tensors, const char* doing,
                              const char* which = "") {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ringcomm: ", doing, ": requires a single-element ", which,
                    "tensor list, got ", tensors.size(),
                    tensors.empty() ? "; requires non-empty tensor list" : "");
  return tensors[0];
}

inline void checkElements(const at::Tensor& tensor, int64_t elements, const char* doing) {
  TORCH_CHECK_VALUE(tensor.numel() == elements, "ringcomm: ", doing,
                    ": invalid tensor size: expected ", elements, " elements, got ", tensor.numel(),
                    " in a tensor of sizes ", tensor.sizes());
}

inline void checkPairs(const RingBackend::Tensors& outputs, const RingBackend::Tensors& inputs,
                       const char* doing) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(), "ringcomm: ", doing,
                    ": requires input/output tensor lists to have the same length, which is not 0; "
                    "got ",
                    inputs.size(), " and ", outputs.size());
}

inline RingBackend::Tensors flatten(const std::vector<RingBackend::Tensors>& lists) {
  RingBackend::Tensors all;
  for (const RingBackend::Tensors& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

inline int checkRoot(int64_t root, int64_t rootTensor, int size, const char* doing) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "ringcomm: ", doing, ": invalid root rank: ", root,
                    "; allowed: 0 to ", size - 1);
  TORCH_CHECK_VALUE(rootTensor == 0, "ringcomm: ", doing, ": invalid root tensor: ", rootTensor,
                    "; allowed: 0");
  return static_cast<int>(root);
}

inline void checkSame(const at::Tensor& tensor, const at::Tensor& first, const char* doing) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "ringcomm: ", doing,
                    ": invalid tensor type: expected ", first.scalar_type(), ", got ",
                    tensor.scalar_type());
}

inline void checkPeer(int peer, int size, const char* doing) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size, "ringcomm: ", doing, ": invalid rank: ", peer,
                    "; allowed: 0 to ", size - 1);
}

// Numbers for each rank.
using Splits = std::vector<int64_t>;

// A tensor that is split among the ranks by rows, and how: evenly where `rows` is empty.
struct SplitTensor {
  const char* which;
  const at::Tensor& tensor;
  const Splits& rows;
};

// The elements of each rank's part.
inline Splits elementsOf(const SplitTensor& split, int size, const char* doing) {
  const at::Tensor& tensor = split.tensor;
  TORCH_CHECK_VALUE(tensor.dim() > 0, "ringcomm: ", doing, ": invalid ", split.which,
                    " tensor: it has no dimension to split among the ranks");
  const auto ranks = static_cast<size_t>(size);
  const int64_t rows = tensor.size(0);
  if (split.rows.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "ringcomm: ", doing, ": invalid ", split.which,
                      " tensor: its dim 0 of ", rows, " does not divide equally across ", size,
                      " ranks");
    return Splits(ranks, tensor.numel() / size);
  }
  TORCH_CHECK_VALUE(split.rows.size() == ranks, "ringcomm: ", doing, ": invalid ", split.which,
                    " split sizes: ", split.rows, "; expected one for each of ", size, " ranks");
  Splits elements;
  int64_t left = rows;
  for (const int64_t part : split.rows) {
    TORCH_CHECK_VALUE(part >= 0 && part <= left, "ringcomm: ", doing, ": invalid ", split.which,
                      " split sizes: ", split.rows, "; allowed: 0 or more, together ", rows);
    left -= part;
    elements.push_back(rows == 0 ? 0 : tensor.numel() / rows * part);
  }
  TORCH_CHECK_VALUE(left == 0, "ringcomm: ", doing, ": invalid ", split.which,
                    " split sizes: ", split.rows, "; their sum has to be dim 0, which is ", rows);
  return elements;
}

}  // namespace ringcomm
