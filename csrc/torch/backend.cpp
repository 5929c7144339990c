#include "torch/backend.h"

#include "torch/batch.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/monitored_barrier.h"
#include "torch/reductions.h"
#include "torch/sparse.h"
#include "torch/store_rendezvous.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

// How a group comes and goes, and then the adapters: each checks its tensors, describes what is to
// be done, and launches it.
namespace ringcomm {

using c10d::OpType;

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<RingOptions> options, const Place& place)
    : Backend(rank, size),
      store_(store),
      place_(place),
      options_(std::move(options)),
      engine_(sharedEngine(options_->values, place.localRanks, rank,
                           [this](const ringcomm::Options& holding) {
                             lateOptions_ = lateOptions(holding, options_->values, options_->given);
                           })) {
  GroupSpec spec;
  spec.name = place.groupName;
  spec.rank = rank;
  spec.world = size;
  spec.routeTo = place.routeTo;
  spec.options = options_->values;
  StoreRendezvous rendezvous(store);
  auto group = Group::join(*engine_, spec, rendezvous, Clock::now() + limitOf(options_->timeout));
  if (!group.ok()) {
    std::rethrow_exception(exceptionOf(group.status(), ""));
  }
  group_ = *group;
  options_->values = group_->options();
}

void RingBackend::prepareExit() { completers().quiesce(std::chrono::seconds(2)); }

RingBackend::~RingBackend() {
  if (group_ == nullptr) {
    return;
  }
  group_->close();
  if (engine_->forked()) {
    // Sockets and epoll instances are the parent's too: what destructors took from them would be
    // missing there. So a child that leaves keeps what it has until it ends.
    new std::pair(std::move(engine_), std::move(group_));
  }
}

// Options are open to Python while other threads use them.
void RingBackend::setTimeout(std::chrono::milliseconds timeout) {
  std::atomic_ref(options_->timeout).store(timeout);
}

std::chrono::milliseconds RingBackend::timeoutOr(std::chrono::milliseconds given) const {
  return given == c10d::kUnsetTimeout ? std::atomic_ref(options_->timeout).load() : given;
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  const std::chrono::milliseconds timeout = timeoutOr(opts.timeout);
  const std::string verdict = MonitoredBarrier(*store_, getRank(), getSize(), monitoredBarriers_++)
                                  .wait(timeout, waitAllRanks);
  if (!verdict.empty()) {
    C10_THROW_ERROR(DistBackendError, "ringcomm: " + verdict);
  }
}

std::vector<uint64_t> RingBackend::globalRanks() const {
  std::vector<uint64_t> ranks = options_->global_ranks_in_group;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(getSize()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

c10::intrusive_ptr<c10d::Backend> RingBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  if (mine == ranks.end()) {
    return nullptr;
  }
  auto options = c10::dynamic_intrusive_pointer_cast<RingOptions>(opts);
  TORCH_CHECK_TYPE(options != nullptr, "ringcomm: split: the options are not ringcomm.Options");
  const std::vector<uint64_t> all = globalRanks();
  options->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    options->global_ranks_in_group.push_back(all[static_cast<size_t>(rank)]);
  }
  // Torch splits once for each type of device, under one name: they share the part, too.
  if (auto made = lastSplit_.lock(); made && lastSplitName_ == options->group_name) {
    return made;
  }
  Place place = place_;
  place.groupName = options->group_name;
  c10::intrusive_ptr<c10d::Backend> made =
      c10::make_intrusive<RingBackend>(store, static_cast<int>(mine - ranks.begin()),
                                       static_cast<int>(ranks.size()), options, place);
  lastSplit_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  lastSplitName_ = options->group_name;
  return made;
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
  sizes.call().timeout = timeoutOr(opts.timeout);
  start(std::move(sizes), false)->wait();

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
  checkReducedTogether(tensors, batch.doing());
  checkReducible(tensors[0], opts.reduceOp, engine_->isa(), batch.doing());
  for (const at::Tensor& tensor : tensors) {  // all are in order: now they may be scaled
    addAllReduce(batch, tensor, opts.reduceOp);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Batch batch(OpType::BROADCAST, "ringcomm:broadcast", tensors, tensors);
  const int root = checkRoot(opts.rootRank, getSize(), batch.doing());
  checkRootTensor(opts.rootTensor, tensors, batch.doing());
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
                    ": requires a single-element output list, got ", outputs.size(),
                    "; requires input/output tensor lists to have the same length");
  checkCount(outputs[0].size(), getSize(), batch.doing(), "output");
  addBlocks(batch, outputs[0], input);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::ALLGATHER_COALESCED, "ringcomm:all_gather", inputs, flatten(outputs));
  checkGatheredTogether(outputs, inputs, getSize(), batch.doing());
  for (size_t i = 0; i < inputs.size(); ++i) {
    batch.begin(Collective::kAllGather, inputs[i]);
    batch.read(inputs[i]);
    for (const Tensors& ofRank : outputs) {
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
  batch.writeEvenParts(output, getSize());
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
  const int root = checkRoot(opts.rootRank, getSize(), batch.doing());
  checkRootTensor(opts.rootTensor, tensors, batch.doing());
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

RingBackend::WorkPtr RingBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  Batch batch(OpType::GATHER, "ringcomm:gather", inputs, flatten(outputs));
  const int root = checkRoot(opts.rootRank, getSize(), batch.doing());
  const at::Tensor& input = only(inputs, batch.doing(), "input ");
  OpDesc& desc = batch.begin(Collective::kGather, input);
  desc.root = root;
  desc.count = OpDesc::kPerMessage;
  batch.read(input);
  for (const at::Tensor& part :
       checkRootList({"output", outputs, root}, input, *this, batch.doing())) {
    batch.write(part);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                     const c10d::GatherOptions& opts) {
  const int root = checkRoot(opts.rootRank, getSize(), "gather");
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
    batch.writeEvenParts(output, getSize());
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& opts) {
  Batch batch(OpType::SCATTER, "ringcomm:scatter", flatten(inputs), outputs);
  const int root = checkRoot(opts.rootRank, getSize(), batch.doing());
  const at::Tensor& output = only(outputs, batch.doing(), "output ");
  OpDesc& desc = batch.begin(Collective::kScatter, output);
  desc.root = root;
  desc.count = OpDesc::kPerMessage;
  batch.write(output);
  for (const at::Tensor& part :
       checkRootList({"input", inputs, root}, output, *this, batch.doing())) {
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
  checkCount(inputs[0].size(), getSize(), batch.doing(), "input");
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
  batch.readEvenParts(scaledCopy(input, op, getSize()), getSize());
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  Batch batch(OpType::_REDUCE_SCATTER_BASE, "ringcomm:reduce_scatter", {input}, {output});
  addReduceScatter(batch, output, input, opts.reduceOp);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  Batch batch(kReduceScatterCoalesced, "ringcomm:reduce_scatter", inputs, outputs);
  checkPairs(outputs, inputs, batch.doing());
  for (size_t i = 0; i < inputs.size(); ++i) {
    addReduceScatter(batch, outputs[i], inputs[i], opts.reduceOp);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  Batch batch(OpType::ALLTOALL, "ringcomm:all_to_all", inputs, outputs);
  checkCount(inputs.size(), getSize(), batch.doing(), "input");
  checkCount(outputs.size(), getSize(), batch.doing(), "output");
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
