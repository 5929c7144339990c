#pragma once

#include "torch/backend.h"
#include "torch/tensors.h"

#include <cstdint>
#include <string>
#include <vector>

// What torch's callers can get wrong, in the words that upstream's tests look for, each with the
// value found and what is allowed. Included by backend.cpp only.
namespace ringcomm {

inline void checkElements(const at::Tensor& tensor, int64_t elements, const char* doing) {
  TORCH_CHECK_VALUE(tensor.numel() == elements, "ringcomm: ", doing,
                    ": invalid tensor size: expected ", elements, " elements, got ", tensor.numel(),
                    " in a tensor of sizes ", tensor.sizes());
}

inline void checkSame(const at::Tensor& tensor, const at::Tensor& first, const char* doing) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "ringcomm: ", doing,
                    ": invalid tensor type: expected ", first.scalar_type(), ", got ",
                    tensor.scalar_type());
}

// The one tensor of a list. In longer ones it is told first what would be wrong anywhere.
inline const at::Tensor& only(const RingBackend::Tensors& tensors, const char* doing,
                              const char* which = "") {
  for (const at::Tensor& tensor : tensors) {
    checkSame(tensor, tensors[0], doing);
    checkElements(tensor, tensors[0].numel(), doing);
  }
  TORCH_CHECK_VALUE(
      tensors.size() == 1, "ringcomm: ", doing, ": requires a single-element ", which,
      "tensor list, got ", tensors.size(),
      tensors.empty() ? c10::str("; requires non-empty ", which, "tensor list") : std::string());
  return tensors[0];
}

// One tensor for each rank.
inline void checkCount(size_t tensors, int size, const char* doing, const char* which) {
  TORCH_CHECK_VALUE(tensors == static_cast<size_t>(size), "ringcomm: ", doing, ": invalid ", which,
                    " tensor list: it has ", tensors, " tensors, but the group has ", size,
                    " ranks");
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

inline int checkRoot(int64_t root, int size, const char* doing) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "ringcomm: ", doing, ": invalid root rank: ", root,
                    "; allowed: 0 to ", size - 1);
  return static_cast<int>(root);
}

inline void checkRootTensor(int64_t tensor, const RingBackend::Tensors& tensors,
                            const char* doing) {
  TORCH_CHECK_VALUE(tensor == 0 && !tensors.empty(), "ringcomm: ", doing,
                    ": invalid root tensor: ", tensor, " of ", tensors.size(), "; allowed: 0 of 1");
}

// What is given to a call for the root alone: a list with the tensors of the ranks; none elsewhere.
struct RootList {
  const char* which;
  const std::vector<RingBackend::Tensors>& lists;
  int root;
};

// The tensors of the ranks, where this rank is the root. `own` is what this rank gives or gets.
inline const RingBackend::Tensors& checkRootList(const RootList& list, const at::Tensor& own,
                                                 const RingBackend& group, const char* doing) {
  static const RingBackend::Tensors kNone;
  const auto& [which, lists, root] = list;
  const int size = group.getSize();
  if (root != group.getRank()) {
    TORCH_CHECK_VALUE(lists.empty(), "ringcomm: ", doing, ": requires empty ", which,
                      " on non-root");
    return kNone;
  }
  TORCH_CHECK_VALUE(lists.size() == 1, "ringcomm: ", doing, ": requires a single-element ", which,
                    " list containing a list with ", size, " tensors, got ", lists.size());
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<size_t>(size), "ringcomm: ", doing,
                    ": Incorrect ", which, " list size ", lists[0].size(), ". ",
                    which[0] == 'o' ? "Output" : "Input", " list size should be ", size,
                    ": it has ", lists[0].size(), " tensors, but the group has ", size, " ranks");
  for (const at::Tensor& part : lists[0]) {
    checkSame(part, own, doing);
  }
  checkElements(lists[0][static_cast<size_t>(root)], own.numel(), doing);
  return lists[0];
}

// Tensors that are reduced in one call.
inline void checkReducedTogether(const RingBackend::Tensors& tensors, const char* doing) {
  TORCH_CHECK_VALUE(!tensors.empty(), "ringcomm: ", doing, ": requires non-empty tensor list");
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(!tensors[i].defined() || tensors[i].layout() == at::kStrided,
                      "ringcomm: ", doing, ": invalid tensor layout at index ", i,
                      ": unsupported layout ", tensors[i].layout(),
                      "; only dense tensors are supported");
    checkTarget(tensors[i], doing);
    TORCH_CHECK_VALUE(tensors[i].scalar_type() == tensors[0].scalar_type(), "ringcomm: ", doing,
                      ": tensors must all have the same type: expected ", tensors[0].scalar_type(),
                      ", got ", tensors[i].scalar_type(), " at index ", i);
  }
}

// Tensors that are gathered in one call: each rank's outputs are like the inputs.
inline void checkGatheredTogether(const std::vector<RingBackend::Tensors>& outputs,
                                  const RingBackend::Tensors& inputs, int size, const char* doing) {
  TORCH_CHECK_VALUE(!inputs.empty(), "ringcomm: ", doing, ": requires non-empty input tensor list");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size), "ringcomm: ", doing,
                    ": output lists should be equal to world size: the output list has ",
                    outputs.size(), " tensors, but the group has ", size, " ranks");
  for (const RingBackend::Tensors& ofRank : outputs) {
    TORCH_CHECK_VALUE(ofRank.size() == inputs.size(), "ringcomm: ", doing,
                      ": invalid output tensor list: expected ", inputs.size(),
                      " tensors for each rank, got ", ofRank.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_VALUE(ofRank[i].scalar_type() == inputs[i].scalar_type(), "ringcomm: ", doing,
                        ": invalid tensor type at index ", i, ": expected ",
                        inputs[i].scalar_type(), ", got ", ofRank[i].scalar_type());
      TORCH_CHECK_VALUE(ofRank[i].numel() == inputs[i].numel(), "ringcomm: ", doing,
                        ": invalid size of output tensor at index ", i, ": expected ",
                        inputs[i].numel(), " elements, got ", ofRank[i].numel(),
                        " in a tensor of sizes ", ofRank[i].sizes());
    }
  }
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
