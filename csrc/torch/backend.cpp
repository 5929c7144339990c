#include "torch/backend.h"

#include "torch/store_rendezvous.h"
#include "torch/tensors.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <iostream>
#include <mutex>
#include <utility>

namespace ringcomm {

namespace {

// Never destroyed: at interpreter exit a callback may still be running in it.
ElasticPool& completers() {
  static auto* pool = new ElasticPool;
  return *pool;
}

LogLevel logLevelOf(const std::string& name) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  for (int level = 0; level < 4; ++level) {
    if (name == kNames[level]) {
      return static_cast<LogLevel>(level);
    }
  }
  TORCH_CHECK_VALUE(false, "ringcomm: option log_level is '", name,
                    "'; allowed: debug, info, warning, error");
}

Logger stderrLogger(const Options& options, int rank) {
  const std::string prefix = "[ringcomm rank " + std::to_string(rank) + "] ";
  return {logLevelOf(options.logLevel), [prefix](LogLevel, const std::string& text) {
            std::cerr << prefix + text + "\n" << std::flush;
          }};
}

// The process's one engine, made for its first group and gone with its last: a process that has
// left all groups has no thread and no port of ours.
std::shared_ptr<Engine> sharedEngine(const Options& options, int localRanks, int rank) {
  static std::mutex mutex;
  static std::weak_ptr<Engine> current;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Engine> engine = current.lock();
  if (engine == nullptr || engine->forked()) {
    auto made = Engine::create(options, localRanks, stderrLogger(options, rank));
    if (!made.ok()) {
      std::rethrow_exception(exceptionOf(made.status(), "starting"));
    }
    engine = *made;
    current = engine;
  }
  return engine;
}

// The caller's own scaling before a sum, and what remains for the engine to do.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  OpDesc::Scaled scaled = OpDesc::Scaled::kNo;
};

// PREMUL_SUM multiplies here. So does AVG in float16, whose sum may overflow where the average does
// not; in the other types the sum is divided at the end, which loses less.
Reduction scaleFirst(const at::Tensor& memory, const c10d::ReduceOp& op, int world) {
  using Type = c10d::ReduceOp::RedOpType;
  switch (op.op_) {
    case Type::PREMUL_SUM: {
      const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor->tensor_factor.defined()) {
        memory.mul_(factor->tensor_factor.reshape({}));  // memory may have no dimension
      } else {
        memory.mul_(factor->double_factor);
      }
      return {ReduceOp::kSum, OpDesc::Scaled::kByFactor};
    }
    case Type::AVG:
      if (memory.scalar_type() == at::kHalf) {
        memory.mul_(1.0 / world);
        return {ReduceOp::kSum, OpDesc::Scaled::kByWorld};
      }
      return {ReduceOp::kAvg};
    case Type::SUM:
      return {ReduceOp::kSum};
    case Type::PRODUCT:
      return {ReduceOp::kProduct};
    case Type::MIN:
      return {ReduceOp::kMin};
    case Type::MAX:
      return {ReduceOp::kMax};
    case Type::BAND:
      return {ReduceOp::kBand};
    case Type::BOR:
      return {ReduceOp::kBor};
    case Type::BXOR:
      return {ReduceOp::kBxor};
    default:
      TORCH_CHECK_VALUE(false, "ringcomm: unknown reduce op ", static_cast<int>(op.op_));
  }
}

// Before anything is scaled or sent: whether the reduction exists for the elements, and its factor.
void checkReducible(const at::Tensor& tensor, const c10d::ReduceOp& op, Isa isa,
                    const char* doing) {
  using Type = c10d::ReduceOp::RedOpType;
  const bool scaled = op.op_ == Type::PREMUL_SUM;
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                               ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBand,
                               ReduceOp::kBor, ReduceOp::kBxor};
  TORCH_CHECK_VALUE(scaled || op.op_ <= Type::BXOR, "ringcomm: ", doing, ": unknown reduce op");
  const ReduceOp wanted = scaled ? ReduceOp::kSum : kOps[op.op_];
  const DType dtype = dtypeOf(tensor.scalar_type(), doing);
  TORCH_CHECK_TYPE(
      findKernel(dtype, wanted, isa) != nullptr && (!scaled || tensor.is_floating_point()),
      "ringcomm: ", doing, " with ", scaled ? "premul_sum" : reduceOpName(wanted),
      " is not defined for tensors of dtype ", dtypeName(dtype));
  if (scaled) {
    const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(factor != nullptr, "ringcomm: ", doing, ": premul_sum without a factor");
  }
}

void checkSingle(const RingBackend::Tensors& tensors, const char* doing) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ringcomm: ", doing,
                    ": requires a single-element tensor list, got ", tensors.size());
  checkTensor(tensors[0], doing);
}

// A tensor that receives what is of the first one's dtype.
void checkSame(const at::Tensor& tensor, const at::Tensor& first, const char* doing) {
  checkTarget(tensor, doing);
  TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "ringcomm: ", doing,
                    ": invalid tensor type: expected ", first.scalar_type(), ", got ",
                    tensor.scalar_type());
}

}  // namespace

RingBackend::RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<RingOptions> options, const Place& place)
    : Backend(rank, size),
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
  if (group_ != nullptr) {
    group_->close();
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

RingBackend::WorkPtr RingBackend::launch(OpDesc desc, RingWork::Call call,
                                         std::chrono::milliseconds timeout, bool async) {
  desc.timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  auto work = c10::make_intrusive<RingWork>(group_, completers(), std::move(call));
  work->start(std::move(desc), !async);
  return work;
}

RingBackend::WorkPtr RingBackend::reduceInPlace(const at::Tensor& memory, RingWork::Call call,
                                                const c10d::AllreduceOptions& opts) {
  const Reduction reduction = scaleFirst(memory, opts.reduceOp, getSize());
  OpDesc desc;
  desc.kind = Collective::kAllReduce;
  desc.dtype = dtypeOf(memory.scalar_type(), "all_reduce");
  desc.reduceOp = reduction.op;
  desc.scaled = reduction.scaled;
  desc.count = static_cast<uint64_t>(memory.numel());
  desc.buffers = {bufferOf(memory)};
  return launch(std::move(desc), std::move(call), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  checkSingle(tensors, "all_reduce");
  checkTarget(tensors[0], "all_reduce");
  checkReducible(tensors[0], opts.reduceOp, engine_->isa(), "all_reduce");
  Flat flat(tensors[0], Flat::Use::kReadWrite);
  RingWork::Call call;
  call.type = c10d::OpType::ALLREDUCE;
  call.title = "ringcomm:all_reduce";
  call.inputs = tensors;
  call.outputs = tensors;
  call.held = {flat.memory()};
  if (flat.copied()) {
    call.epilogue = [flat] { flat.copyBack(); };
  }
  return reduceInPlace(flat.memory(), std::move(call), opts);
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  constexpr const char* kDoing = "all_reduce_coalesced";
  TORCH_CHECK_VALUE(!tensors.empty(), "ringcomm: ", kDoing, ": requires non-empty tensor list");
  for (const at::Tensor& tensor : tensors) {
    checkSame(tensor, tensors[0], kDoing);
  }
  checkReducible(tensors[0], opts.reduceOp, engine_->isa(), kDoing);
  Packed packed(tensors);
  RingWork::Call call;
  call.type = c10d::OpType::ALLREDUCE_COALESCED;
  call.title = "ringcomm:all_reduce";
  call.inputs = tensors;
  call.outputs = tensors;
  call.held = {packed.memory()};
  call.epilogue = [packed] { packed.copyBack(); };
  return reduceInPlace(packed.memory(), std::move(call), opts);
}

RingBackend::WorkPtr RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  checkSingle(tensors, "broadcast");
  TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < getSize(),
                    "ringcomm: broadcast: invalid root rank: ", opts.rootRank, "; allowed: 0 to ",
                    getSize() - 1);
  TORCH_CHECK_VALUE(opts.rootTensor == 0,
                    "ringcomm: broadcast: invalid root tensor: ", opts.rootTensor, "; allowed: 0");
  const bool isRoot = opts.rootRank == getRank();
  if (!isRoot) {
    checkTarget(tensors[0], "broadcast");
  }
  Flat flat(tensors[0], isRoot ? Flat::Use::kRead : Flat::Use::kWrite);
  OpDesc desc;
  desc.kind = Collective::kBroadcast;
  desc.dtype = dtypeOf(tensors[0].scalar_type(), "broadcast");
  desc.root = static_cast<int>(opts.rootRank);
  desc.count = static_cast<uint64_t>(tensors[0].numel());
  desc.buffers = {flat.buffer()};
  RingWork::Call call;
  call.type = c10d::OpType::BROADCAST;
  call.title = "ringcomm:broadcast";
  call.inputs = tensors;
  call.outputs = tensors;
  call.held = {flat.memory()};
  if (flat.copied()) {
    call.epilogue = [flat] { flat.copyBack(); };
  }
  return launch(std::move(desc), std::move(call), opts.timeout, opts.asyncOp);
}

// Every rank's `input` into outputs[rank].
RingBackend::WorkPtr RingBackend::gather(std::vector<Buffer> outputs, const at::Tensor& input,
                                         RingWork::Call call, const c10d::AllgatherOptions& opts) {
  OpDesc desc;
  desc.kind = Collective::kAllGather;
  desc.dtype = dtypeOf(input.scalar_type(), "all_gather");
  desc.count = static_cast<uint64_t>(input.numel());
  desc.buffers = {bufferOf(input)};
  desc.buffers.insert(desc.buffers.end(), outputs.begin(), outputs.end());
  return launch(std::move(desc), std::move(call), opts.timeout, opts.asyncOp);
}

RingBackend::WorkPtr RingBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  constexpr const char* kDoing = "all_gather";
  checkSingle(inputs, kDoing);
  TORCH_CHECK_VALUE(outputs.size() == 1, "ringcomm: ", kDoing,
                    ": requires a single-element output list, got ", outputs.size());
  const Tensors& parts = outputs[0];
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(getSize()), "ringcomm: ", kDoing,
                    ": invalid output tensor list: it has ", parts.size(),
                    " tensors, but the group has ", getSize(), " ranks");
  Flat input(inputs[0], Flat::Use::kRead);
  std::vector<Flat> flats;
  std::vector<Buffer> buffers;
  RingWork::Call call;
  bool copied = false;
  for (const at::Tensor& part : parts) {
    checkSame(part, inputs[0], kDoing);
    TORCH_CHECK_VALUE(part.numel() == inputs[0].numel(), "ringcomm: ", kDoing,
                      ": invalid tensor size: expected ", inputs[0].sizes(), ", got ",
                      part.sizes());
    flats.emplace_back(part, Flat::Use::kWrite);
    buffers.push_back(flats.back().buffer());
    call.held.push_back(flats.back().memory());
    copied = copied || flats.back().copied();
  }
  call.type = c10d::OpType::ALLGATHER;
  call.title = "ringcomm:all_gather";
  call.inputs = inputs;
  call.outputs = parts;
  call.held.push_back(input.memory());
  if (copied) {
    call.epilogue = [flats] {
      for (const Flat& flat : flats) {
        if (flat.copied()) {
          flat.copyBack();
        }
      }
    };
  }
  return gather(std::move(buffers), input.memory(), std::move(call), opts);
}

RingBackend::WorkPtr RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  constexpr const char* kDoing = "all_gather_into_tensor";
  checkTensor(input, kDoing);
  checkSame(output, input, kDoing);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), "ringcomm: ", kDoing,
                    ": invalid tensor size: the output has ", output.numel(),
                    " elements, but must have ", input.numel() * getSize(), " (the input's ",
                    input.numel(), " times the group's ", getSize(), " ranks)");
  Flat from(input, Flat::Use::kRead);
  Flat to(output, Flat::Use::kWrite);
  const uint64_t blockBytes = from.buffer().bytes;
  std::vector<Buffer> blocks;
  for (int rank = 0; rank < getSize(); ++rank) {
    blocks.push_back({to.buffer().data + static_cast<uint64_t>(rank) * blockBytes, blockBytes});
  }
  RingWork::Call call;
  call.type = c10d::OpType::_ALLGATHER_BASE;
  call.title = "ringcomm:all_gather";
  call.inputs = {input};
  call.outputs = {output};
  call.held = {from.memory(), to.memory()};
  if (to.copied()) {
    call.epilogue = [to] { to.copyBack(); };
  }
  return gather(std::move(blocks), from.memory(), std::move(call), opts);
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& opts) {
  OpDesc desc;
  desc.kind = Collective::kBarrier;
  RingWork::Call call;
  call.type = c10d::OpType::BARRIER;
  call.title = "ringcomm:barrier";
  return launch(std::move(desc), std::move(call), opts.timeout, opts.asyncOp);
}

}  // namespace ringcomm
