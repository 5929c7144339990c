#include "torch/backend.h"
#include "torch/batch.h"
#include "torch/checks.h"
#include "torch/reductions.h"
#include "torch/sparse.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <utility>

// The adapters: each checks its tensors, describes what is to be done, and launches it.
namespace ringcomm {

using c10d::OpType;

// One tensor for each rank.
void RingBackend::checkCount(size_t tensors, const char* doing, const char* which) const {
  TORCH_CHECK_VALUE(tensors == static_cast<size_t>(getSize()), "ringcomm: ", doing, ": invalid ",
                    which, " tensor list: it has ", tensors, " tensors, but the group has ",
                    getSize(), " ranks");
}

std::vector<int64_t> RingBackend::evenParts(int64_t elements) const {
  return std::vector<int64_t>(static_cast<size_t>(getSize()), elements);
}

// Says what reduction an operation does, having checked that there is one.
void RingBackend::setReduction(const Batch& batch, OpDesc& desc, const at::Tensor& tensor,
                               const c10d::ReduceOp& op) const {
  checkReducible(tensor, op, engine_->isa(), batch.doing());
  const Reduction reduction = reductionOf(tensor, op);
  desc.reduceOp = reduction.op;
  desc.scaled = reduction.scaled;
}

void RingBackend::addAllReduce(Batch& batch, const at::Tensor& tensor,
                               const c10d::ReduceOp& op) const {
  checkTarget(tensor, batch.doing());
  setReduction(batch, batch.begin(Collective::kAllReduce, tensor), tensor, op);
  scaleFirst(batch.update(tensor), op, getSize());
}

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Batch batch(OpType::ALLREDUCE, "ringcomm:all_reduce", tensors, tensors);
  const at::Tensor& tensor = only(tensors, batch.doing());
  if (tensor.defined() && tensor.layout() == at::kSparse) {
    addSparseSum(batch, ownerOf(tensor), opts);
  } else {
    addAllReduce(batch, tensor, opts.reduceOp);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

// How many non-zeros each rank has must be known before there is room for them: that exchange is
// waited for here, on the caller's thread, so that the order of operations is every rank's.
void RingBackend::addSparseSum(Batch& batch, const at::Tensor& tensor,
                               const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(opts.reduceOp.op_ == c10d::ReduceOp::SUM, "ringcomm: ", batch.doing(),
                    ": unsupported reduction operation: only SUM is defined for sparse tensors");
  const at::Tensor mine = tensor.detach().coalesce();
  checkTensor(mine.values(), batch.doing());
  at::Tensor nonZeros = at::empty({getSize()}, at::kLong);
  Batch sizes(OpType::ALLGATHER, "ringcomm:all_gather", {}, {});
  addAllGather(sizes, nonZeros, at::full({1}, mine._nnz(), at::kLong));
  start(std::move(sizes), opts.timeout, false)->wait();

  const SparseParts parts(mine,
                          {nonZeros.data_ptr<int64_t>(), nonZeros.data_ptr<int64_t>() + getSize()});
  addBlocks(batch, parts.indices, mine.indices());
  addBlocks(batch, parts.values, mine.values());
  // The tensor itself: a detached one would get new indices and values of its own.
  batch.finally([parts, tensor] {
    const c10::AutoGradMode noGrad(false);
    tensor.copy_(parts.sum(tensor.sizes()));
  });
}

// An all_gather of blocks of different sizes.
void RingBackend::addBlocks(Batch& batch, const Tensors& outputs, const at::Tensor& input) const {
  checkElements(outputs[static_cast<size_t>(getRank())], input.numel(), batch.doing());
  batch.begin(Collective::kAllGather, input).count = OpDesc::kPerMessage;
  batch.read(input);
  for (const at::Tensor& output : outputs) {
    checkSame(output, input, batch.doing());
    batch.write(output);
  }
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  Batch batch(OpType::ALLREDUCE_COALESCED, "ringcomm:all_reduce", tensors, tensors);
  TORCH_CHECK_VALUE(!tensors.empty(), "ringcomm: ", batch.doing(),
                    ": requires non-empty tensor list");
  for (const at::Tensor& tensor : tensors) {
    checkTarget(tensor, batch.doing());
    checkSame(tensor, tensors[0], batch.doing());
  }
  checkReducible(tensors[0], opts.reduceOp, engine_->isa(), batch.doing());
  for (const at::Tensor& tensor : tensors) {  // all are in order: now they may be scaled
    addAllReduce(batch, tensor, opts.reduceOp);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Batch batch(OpType::BROADCAST, "ringcomm:broadcast", tensors, tensors);
  const int root = checkRoot(opts.rootRank, opts.rootTensor, getSize(), batch.doing());
  const at::Tensor& tensor = only(tensors, batch.doing());
  batch.begin(Collective::kBroadcast, tensor).root = root;
  if (root == getRank()) {
    batch.read(tensor);
  } else {
    batch.write(tensor);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::ALLGATHER, "ringcomm:all_gather", inputs,
              outputs.size() == 1 ? outputs[0] : Tensors());
  const at::Tensor& input = only(inputs, batch.doing(), "input ");
  TORCH_CHECK_VALUE(outputs.size() == 1, "ringcomm: ", batch.doing(),
                    ": requires a single-element output list, got ", outputs.size());
  checkCount(outputs[0].size(), batch.doing(), "output");
  addBlocks(batch, outputs[0], input);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::ALLGATHER_COALESCED, "ringcomm:all_gather", inputs, flatten(outputs));
  checkCount(outputs.size(), batch.doing(), "output");
  TORCH_CHECK_VALUE(!inputs.empty(), "ringcomm: ", batch.doing(),
                    ": requires non-empty input tensor list");
  for (size_t i = 0; i < inputs.size(); ++i) {
    batch.begin(Collective::kAllGather, inputs[i]);
    batch.read(inputs[i]);
    for (const Tensors& ofRank : outputs) {
      TORCH_CHECK_VALUE(ofRank.size() == inputs.size(), "ringcomm: ", batch.doing(),
                        ": invalid output tensor list: expected ", inputs.size(),
                        " tensors for each rank, got ", ofRank.size());
      checkSame(ofRank[i], inputs[i], batch.doing());
      checkElements(ofRank[i], inputs[i].numel(), batch.doing());
      batch.write(ofRank[i]);
    }
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

void RingBackend::addAllGather(Batch& batch, const at::Tensor& output,
                               const at::Tensor& input) const {
  checkSame(output, input, batch.doing());
  checkElements(output, input.numel() * getSize(), batch.doing());
  batch.begin(Collective::kAllGather, input);
  batch.read(input);
  batch.writeParts(output, evenParts(input.numel()));
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::_ALLGATHER_BASE, "ringcomm:all_gather", {input}, {output});
  addAllGather(batch, output, input);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::COALESCED, "ringcomm:all_gather", inputs, outputs);
  checkPairs(outputs, inputs, batch.doing());
  for (size_t i = 0; i < inputs.size(); ++i) {
    addAllGather(batch, outputs[i], inputs[i]);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Batch batch(OpType::REDUCE, "ringcomm:reduce", tensors, tensors);
  const int root = checkRoot(opts.rootRank, opts.rootTensor, getSize(), batch.doing());
  const at::Tensor& tensor = only(tensors, batch.doing());
  checkTensor(tensor, batch.doing());
  OpDesc& desc = batch.begin(Collective::kReduce, tensor);
  setReduction(batch, desc, tensor, opts.reduceOp);
  desc.root = root;
  if (root == getRank()) {
    scaleFirst(batch.update(tensor), opts.reduceOp, getSize());
    desc.buffers.push_back(desc.buffers[0]);  // the result takes the place of the input
  } else {
    batch.read(scaledCopy(tensor, opts.reduceOp, getSize()));
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

// The tensors of the ranks, where this rank is the root; nothing may be given elsewhere. `own` is
// what this rank gives or gets.
const RingBackend::Tensors& RingBackend::checkRootList(const std::vector<Tensors>& lists, int root,
                                                       const at::Tensor& own, const char* doing,
                                                       const char* which) const {
  static const Tensors kNone;
  if (root != getRank()) {
    TORCH_CHECK_VALUE(lists.empty(), "ringcomm: ", doing, ": requires empty ", which,
                      " on non-root");
    return kNone;
  }
  TORCH_CHECK_VALUE(lists.size() == 1, "ringcomm: ", doing, ": requires a single-element ", which,
                    " list containing a list with ", getSize(), " tensors, got ", lists.size());
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<size_t>(getSize()), "ringcomm: ", doing,
                    ": Incorrect ", which, " list size ", lists[0].size(), ". ",
                    which[0] == 'o' ? "Output" : "Input", " list size should be ", getSize(),
                    ": it has ", lists[0].size(), " tensors, but the group has ", getSize(),
                    " ranks");
  for (const at::Tensor& part : lists[0]) {
    checkSame(part, own, doing);
  }
  checkElements(lists[0][static_cast<size_t>(root)], own.numel(), doing);
  return lists[0];
}

RingBackend::WorkPtr RingBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  Batch batch(OpType::GATHER, "ringcomm:gather", inputs, flatten(outputs));
  const int root = checkRoot(opts.rootRank, 0, getSize(), batch.doing());
  const at::Tensor& input = only(inputs, batch.doing(), "input ");
  OpDesc& desc = batch.begin(Collective::kGather, input);
  desc.root = root;
  desc.count = OpDesc::kPerMessage;
  batch.read(input);
  for (const at::Tensor& part : checkRootList(outputs, root, input, batch.doing(), "output")) {
    batch.write(part);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& opts) {
  const int root = checkRoot(opts.rootRank, 0, getSize(), "gather");
  const bool here = root == getRank();
  Batch batch(OpType::GATHER, "ringcomm:gather", {input}, here ? Tensors{output} : Tensors());
  OpDesc& desc = batch.begin(Collective::kGather, input);
  desc.root = root;
  desc.count = OpDesc::kPerMessage;
  batch.read(input);
  if (here) {
    checkTarget(output, batch.doing());
    checkSame(output, input, batch.doing());
    checkElements(output, input.numel() * getSize(), batch.doing());
    batch.writeParts(output, evenParts(input.numel()));
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& opts) {
  Batch batch(OpType::SCATTER, "ringcomm:scatter", flatten(inputs), outputs);
  const int root = checkRoot(opts.rootRank, 0, getSize(), batch.doing());
  const at::Tensor& output = only(outputs, batch.doing(), "output ");
  OpDesc& desc = batch.begin(Collective::kScatter, output);
  desc.root = root;
  desc.count = OpDesc::kPerMessage;
  batch.write(output);
  for (const at::Tensor& part : checkRootList(inputs, root, output, batch.doing(), "input")) {
    batch.read(part);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  Batch batch(OpType::REDUCE_SCATTER, "ringcomm:reduce_scatter", flatten(inputs), outputs);
  const at::Tensor& output = only(outputs, batch.doing(), "output ");
  TORCH_CHECK_VALUE(inputs.size() == 1, "ringcomm: ", batch.doing(),
                    ": requires a single-element input list, got ", inputs.size());
  checkCount(inputs[0].size(), batch.doing(), "input");
  checkElements(inputs[0][static_cast<size_t>(getRank())], output.numel(), batch.doing());
  OpDesc& desc = batch.begin(Collective::kReduceScatter, output);
  desc.count = OpDesc::kPerMessage;
  setReduction(batch, desc, output, opts.reduceOp);
  batch.write(output);
  for (const at::Tensor& part : inputs[0]) {
    checkSame(part, output, batch.doing());
    batch.read(scaledCopy(part, opts.reduceOp, getSize()));
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

void RingBackend::addReduceScatter(Batch& batch, const at::Tensor& output, const at::Tensor& input,
                                   const c10d::ReduceOp& op) const {
  checkSame(output, input, batch.doing());
  checkElements(input, output.numel() * getSize(), batch.doing());
  setReduction(batch, batch.begin(Collective::kReduceScatter, output), output, op);
  batch.write(output);
  batch.readParts(scaledCopy(input, op, getSize()), evenParts(output.numel()));
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  Batch batch(OpType::_REDUCE_SCATTER_BASE, "ringcomm:reduce_scatter", {input}, {output});
  addReduceScatter(batch, output, input, opts.reduceOp);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  Batch batch(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "ringcomm:reduce_scatter", inputs, outputs);
  checkPairs(outputs, inputs, batch.doing());
  for (size_t i = 0; i < inputs.size(); ++i) {
    addReduceScatter(batch, outputs[i], inputs[i], opts.reduceOp);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  Batch batch(OpType::ALLTOALL, "ringcomm:all_to_all", inputs, outputs);
  checkCount(inputs.size(), batch.doing(), "input");
  checkCount(outputs.size(), batch.doing(), "output");
  batch.begin(Collective::kAllToAll, inputs[0]).count = OpDesc::kPerMessage;
  for (const at::Tensor& part : inputs) {
    checkSame(part, inputs[0], batch.doing());
    batch.read(part);
  }
  for (const at::Tensor& part : outputs) {
    checkSame(part, inputs[0], batch.doing());
    batch.write(part);
  }
  const auto own = static_cast<size_t>(getRank());
  checkElements(outputs[own], inputs[own].numel(), batch.doing());
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& outputSplits,
                                                std::vector<int64_t>& inputSplits,
                                                const c10d::AllToAllOptions& opts) {
  Batch batch(OpType::ALLTOALL_BASE, "ringcomm:all_to_all", {input}, {output});
  checkSame(output, input, batch.doing());
  TORCH_CHECK_VALUE(input.is_contiguous() && output.is_contiguous(), "ringcomm: ", batch.doing(),
                    ": Tensors must be contiguous");
  const Splits sends = elementsOf({"input", input, inputSplits}, getSize(), batch.doing());
  const Splits receives = elementsOf({"output", output, outputSplits}, getSize(), batch.doing());
  const auto own = static_cast<size_t>(getRank());
  TORCH_CHECK_VALUE(sends[own] == receives[own], "ringcomm: ", batch.doing(),
                    ": invalid split sizes: this rank sends itself ", sends[own],
                    " elements, but expects ", receives[own]);
  batch.begin(Collective::kAllToAll, input).count = OpDesc::kPerMessage;
  batch.call().inputSplits = sends;
  batch.call().outputSplits = receives;
  batch.readParts(input, sends);
  batch.writeParts(output, receives);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  Batch batch(OpType::BARRIER, "ringcomm:barrier", {}, {});
  batch.beginBarrier();
  if (auto copying = copies_.pending(); !copying.empty()) {
    batch.finally([copying = std::move(copying)] {
      for (const auto& work : copying) {
        work->waitEnd();
      }
    });
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::transfer(Tensors& tensors, OpDesc::Transfer transfer, int peer,
                                           int tag, Batch batch) {
  const at::Tensor& tensor = only(tensors, batch.doing());
  OpDesc& desc = batch.begin(Collective::kBarrier, tensor);
  desc.transfer = transfer;
  desc.peer = peer;
  desc.tag = tag;
  batch.call().peer = peer;
  if (transfer == OpDesc::Transfer::kSend) {
    batch.read(tensor);
  } else {
    batch.write(tensor);
  }
  return launch(std::move(batch), c10d::kUnsetTimeout, true);
}

RingBackend::WorkPtr RingBackend::send(Tensors& tensors, int dstRank, int tag) {
  Batch batch(OpType::SEND, "ringcomm:send", tensors, tensors);
  checkPeer(dstRank, getSize(), batch.doing());
  return transfer(tensors, OpDesc::Transfer::kSend, dstRank, tag, std::move(batch));
}

RingBackend::WorkPtr RingBackend::recv(Tensors& tensors, int srcRank, int tag) {
  Batch batch(OpType::RECV, "ringcomm:recv", tensors, tensors);
  checkPeer(srcRank, getSize(), batch.doing());
  return transfer(tensors, OpDesc::Transfer::kReceive, srcRank, tag, std::move(batch));
}

RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, OpDesc::Transfer::kReceive, kAnyPeer, tag,
                  Batch(OpType::RECVANYSOURCE, "ringcomm:recvAnySource", tensors, tensors));
}

}  // namespace ringcomm
