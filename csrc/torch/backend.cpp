#include "torch/backend.h"

#include "torch/batch.h"
#include "torch/monitored_barrier.h"
#include "torch/process.h"
#include "torch/reductions.h"
#include "torch/store_rendezvous.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <utility>

namespace ringcomm {

namespace {

using c10d::OpType;

const at::Tensor& only(const RingBackend::Tensors& tensors, const char* doing) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ringcomm: ", doing,
                    ": requires a single-element tensor list, got ", tensors.size());
  return tensors[0];
}

void checkElements(const at::Tensor& tensor, int64_t elements, const char* doing) {
  TORCH_CHECK_VALUE(tensor.numel() == elements, "ringcomm: ", doing,
                    ": invalid tensor size: expected ", elements, " elements, got ", tensor.numel(),
                    " in a tensor of sizes ", tensor.sizes());
}

int checkRoot(int64_t root, int64_t rootTensor, int size, const char* doing) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "ringcomm: ", doing, ": invalid root rank: ", root,
                    "; allowed: 0 to ", size - 1);
  TORCH_CHECK_VALUE(rootTensor == 0, "ringcomm: ", doing, ": invalid root tensor: ", rootTensor,
                    "; allowed: 0");
  return static_cast<int>(root);
}

void checkSame(const at::Tensor& tensor, const at::Tensor& first, const char* doing) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "ringcomm: ", doing,
                    ": invalid tensor type: expected ", first.scalar_type(), ", got ",
                    tensor.scalar_type());
}

}  // namespace

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<RingOptions> options, const Place& place)
    : Backend(rank, size),
      store_(store),
      place_(place),
      options_(std::move(options)),
      engine_(sharedEngine(options_->values, place.localRanks, rank)) {
  GroupSpec spec;
  spec.name = place.groupName;
  spec.rank = rank;
  spec.world = size;
  spec.routeTo = place.routeTo;
  spec.options = options_->values;
  StoreRendezvous rendezvous(store);
  auto group = Group::join(*engine_, spec, rendezvous, Clock::now() + options_->timeout);
  if (!group.ok()) {
    std::rethrow_exception(exceptionOf(group.status(), ""));
  }
  group_ = *group;
  options_->values = group_->options();
}

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

c10d::ErrorType RingBackend::getError() {
  switch (group_->failure().code()) {
    case Code::kOk:
      return c10d::ErrorType::SUCCESS;
    case Code::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case Code::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

// One tensor for each rank.
void RingBackend::checkCount(const Tensors& tensors, const char* doing, const char* which) const {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<size_t>(getSize()), "ringcomm: ", doing,
                    ": invalid ", which, " tensor list: it has ", tensors.size(),
                    " tensors, but the group has ", getSize(), " ranks");
}

std::vector<int64_t> RingBackend::evenParts(int64_t elements) const {
  return std::vector<int64_t>(static_cast<size_t>(getSize()), elements);
}

RingBackend::WorkPtr RingBackend::launch(Batch batch, std::chrono::milliseconds timeout,
                                         bool async) {
  std::vector<OpDesc> ops = batch.takeOps();
  for (OpDesc& desc : ops) {
    desc.timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  }
  auto work = c10::make_intrusive<RingWork>(group_, completers(), batch.takeCall());
  work->start(std::move(ops), !async);
  return work;
}

void RingBackend::addAllReduce(Batch& batch, const at::Tensor& tensor,
                               const c10d::ReduceOp& op) const {
  checkTarget(tensor, batch.doing());
  checkReducible(tensor, op, engine_->isa(), batch.doing());
  OpDesc& desc = batch.begin(Collective::kAllReduce, tensor);
  const Reduction reduction = scaleFirst(batch.update(tensor), op, getSize());
  desc.reduceOp = reduction.op;
  desc.scaled = reduction.scaled;
}

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Batch batch(OpType::ALLREDUCE, "ringcomm:all_reduce", tensors, tensors);
  addAllReduce(batch, only(tensors, batch.doing()), opts.reduceOp);
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  Batch batch(OpType::ALLREDUCE_COALESCED, "ringcomm:all_reduce", tensors, tensors);
  TORCH_CHECK_VALUE(!tensors.empty(), "ringcomm: ", batch.doing(),
                    ": requires non-empty tensor list");
  for (const at::Tensor& tensor : tensors) {
    checkSame(tensor, tensors[0], batch.doing());
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
  const at::Tensor& input = only(inputs, batch.doing());
  TORCH_CHECK_VALUE(outputs.size() == 1, "ringcomm: ", batch.doing(),
                    ": requires a single-element output list, got ", outputs.size());
  checkCount(outputs[0], batch.doing(), "output");
  batch.begin(Collective::kAllGather, input);
  batch.read(input);
  for (const at::Tensor& part : outputs[0]) {
    checkSame(part, input, batch.doing());
    checkElements(part, input.numel(), batch.doing());
    batch.write(part);
  }
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  Batch batch(OpType::_ALLGATHER_BASE, "ringcomm:all_gather", {input}, {output});
  checkSame(output, input, batch.doing());
  checkElements(output, input.numel() * getSize(), batch.doing());
  batch.begin(Collective::kAllGather, input);
  batch.read(input);
  batch.writeParts(output, evenParts(input.numel()));
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  Batch batch(OpType::BARRIER, "ringcomm:barrier", {}, {});
  batch.beginBarrier();
  return launch(std::move(batch), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::transfer(Tensors& tensors, OpDesc::Transfer transfer, int peer,
                                           int tag, Batch batch) {
  const at::Tensor& tensor = only(tensors, batch.doing());
  TORCH_CHECK_VALUE(peer >= kAnyPeer && peer < getSize(), "ringcomm: ", batch.doing(),
                    ": invalid rank: ", peer, "; allowed: 0 to ", getSize() - 1);
  OpDesc& desc = batch.begin(Collective::kBarrier, tensor);
  desc.transfer = transfer;
  desc.peer = peer;
  desc.tag = tag;
  if (transfer == OpDesc::Transfer::kSend) {
    batch.read(tensor);
  } else {
    batch.write(tensor);
  }
  return launch(std::move(batch), c10d::kUnsetTimeout, true);
}

RingBackend::WorkPtr RingBackend::send(Tensors& tensors, int dstRank, int tag) {
  return transfer(tensors, OpDesc::Transfer::kSend, dstRank, tag,
                  Batch(OpType::SEND, "ringcomm:send", tensors, tensors));
}

RingBackend::WorkPtr RingBackend::recv(Tensors& tensors, int srcRank, int tag) {
  return transfer(tensors, OpDesc::Transfer::kReceive, srcRank, tag,
                  Batch(OpType::RECV, "ringcomm:recv", tensors, tensors));
}

RingBackend::WorkPtr RingBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, OpDesc::Transfer::kReceive, kAnyPeer, tag,
                  Batch(OpType::RECVANYSOURCE, "ringcomm:recvAnySource", tensors, tensors));
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  const auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  const std::string verdict = MonitoredBarrier(*store_, getRank(), getSize(), monitoredBarriers_++)
                                  .wait(timeout, waitAllRanks);
  if (!verdict.empty()) {
    C10_THROW_ERROR(DistBackendError, "ringcomm: " + verdict);
  }
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
  Place place = place_;
  place.groupName = options->group_name;
  return c10::make_intrusive<RingBackend>(store, static_cast<int>(mine - ranks.begin()),
                                          static_cast<int>(ranks.size()), options, place);
}

}  // namespace ringcomm
