#include "torch/backend.h"

#include "torch/batch.h"
#include "torch/monitored_barrier.h"
#include "torch/store_rendezvous.h"

#include <Python.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace ringcomm {

using c10d::OpType;

namespace {

int64_t elements(const RingBackend::Tensors& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

at::ScalarType dtypeOf(const RingWork::Call& call) {
  const auto& tensors = call.inputs.empty() ? call.outputs : call.inputs;
  return tensors.empty() ? at::kByte : tensors[0].scalar_type();
}

}  // namespace

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

// Options are open to Python while other threads use them.
void RingBackend::setTimeout(std::chrono::milliseconds timeout) {
  std::atomic_ref(options_->timeout).store(timeout);
}

std::chrono::milliseconds RingBackend::timeoutOr(std::chrono::milliseconds given) const {
  return given == c10d::kUnsetTimeout ? std::atomic_ref(options_->timeout).load() : given;
}

// One call from outside: it is counted, and shown to profilers and to the flight recorder.
RingBackend::WorkPtr RingBackend::launch(Batch batch, std::chrono::milliseconds timeout,
                                         bool async) {
  RingWork::Call& call = batch.call();
  const bool p2p = c10d::isP2POp(call.type);
  const uint64_t number = (p2p ? transfers_ : collectives_).fetch_add(1) + 1;
  if (auto* recorder = FlightRecorder::get(); recorder != nullptr) {
    record(*recorder, call, timeoutOr(timeout));
  }
  WorkPtr work;
  if (at::hasCallbacks()) {
    RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(number), p2p),
                            std::make_tuple(getGroupUid(), getGroupDesc()), call.inputs,
                            call.outputs, getRank(), batch.doing(), elements(call.inputs),
                            elements(call.outputs), dtypeOf(call), call.inputSplits,
                            call.outputSplits, static_cast<int>(globalRanks()[0]), 1, getSize());
    work = start(std::move(batch), timeout, async);
  } else {
    work = start(std::move(batch), timeout, async);
  }
  coalescing_.add(work);
  return work;
}

RingBackend::WorkPtr RingBackend::start(Batch batch, std::chrono::milliseconds timeout,
                                        bool async) {
  std::vector<OpDesc> ops = batch.takeOps();
  RingWork::Call call = batch.takeCall();
  call.timeout = timeoutOr(timeout);
  for (OpDesc& desc : ops) {
    desc.timeout = limitOf(call.timeout);
  }
  auto work = c10::make_intrusive<RingWork>(group_, completers(), std::move(call));
  if (work->copies()) {
    copies_.add(work);
  }
  work->start(std::move(ops), !async);
  return work;
}

std::vector<uint64_t> RingBackend::globalRanks() const {
  std::vector<uint64_t> ranks = options_->global_ranks_in_group;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(getSize()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

// The group as it is called now: torch gives names only after it has made the backend.
std::shared_ptr<const FlightRecorder::Group> RingBackend::recordedGroup() {
  std::lock_guard<std::mutex> lock(recordedGroupMutex_);
  const std::string& name = getGroupUid();
  const std::string& description = getGroupDesc();
  if (recordedGroup_ == nullptr || recordedGroup_->name != name ||
      recordedGroup_->description != description) {
    recordedGroup_ = std::make_shared<FlightRecorder::Group>(
        FlightRecorder::Group{name, description, globalRanks()});
  }
  return recordedGroup_;
}

void RingBackend::record(FlightRecorder& recorder, RingWork::Call& call,
                         std::chrono::milliseconds timeout) {
  const bool even = alike(call.inputs) && alike(call.outputs);
  FlightRecorder::Call recorded;
  recorded.group = recordedGroup();
  recorded.name = recordedName(call.type, even, getRank(), call.peer);
  recorded.p2p = c10d::isP2POp(call.type);
  recorded.collectives = collectives_.load();
  recorded.transfers = transfers_.load();
  recorded.calls = recorded.collectives + recorded.transfers;
  recorded.timeout = timeout;
  recorded.inputs = shapesOf(call.inputs, even && call.type == OpType::REDUCE_SCATTER);
  recorded.outputs = shapesOf(call.outputs, even && call.type == OpType::ALLGATHER);
  call.recorded = recorder.record(std::move(recorded));
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  const std::chrono::milliseconds timeout = timeoutOr(opts.timeout);
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

}  // namespace ringcomm
