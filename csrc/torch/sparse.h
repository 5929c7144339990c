#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

// The sum of sparse COO tensors, each with non-zeros of its own. Included by backend.cpp only.
namespace ringcomm {

// torch.distributed hands complex tensors on as views of real ones. A sparse view has indices of
// its own, so the sum has to go to the tensor behind it.
inline at::Tensor ownerOf(const at::Tensor& tensor) {
  if (tensor.is_view() && tensor._base().is_complex()) {
    return at::Tensor(tensor._base());
  }
  return tensor;
}

// Every rank's indices (sparse dimensions x non-zeros) and values, to be gathered.
struct SparseParts {
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;

  // Room for what the ranks announce, in the shapes of `mine` but for the number of non-zeros.
  SparseParts(const at::Tensor& mine, const std::vector<int64_t>& nonZeros) {
    const at::Tensor values0 = mine.values();
    for (const int64_t count : nonZeros) {
      std::vector<int64_t> shape = values0.sizes().vec();
      shape[0] = count;
      values.push_back(at::empty(shape, values0.options()));
      indices.push_back(at::empty({mine.sparse_dim(), count}, mine.indices().options()));
    }
  }

  // Concatenated, and added where indices meet: in rank order, so the same on every rank.
  at::Tensor sum(at::IntArrayRef sizes) const {
    return at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), sizes).coalesce();
  }
};

}  // namespace ringcomm
