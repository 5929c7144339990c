#include "torch/work.h"

#include "torch/backend.h"
#include "torch/batch.h"
#include "torch/errors.h"
#include "torch/recording.h"

#include <ATen/ThreadLocalState.h>
#include <Python.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <tuple>
#include <utility>

// The one way of every call, from the backend's launch() to the end of its Work.
namespace ringcomm {

namespace {

int64_t elements(const RingBackend::Tensors& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

at::ScalarType shownDtype(const RingWork::Call& call) {
  const auto& tensors = call.inputs.empty() ? call.outputs : call.inputs;
  return tensors.empty() ? at::kByte : tensors[0].scalar_type();
}

TimePoint deadlineOf(std::chrono::milliseconds timeout) {
  // The operation has a deadline of its own; it ends in time also when nobody limits the wait.
  const bool limited = timeout > std::chrono::milliseconds(0);
  return Clock::now() + limitOf(limited ? timeout : std::chrono::milliseconds::max());
}

}  // namespace

// One call from outside: it is counted, and shown to profilers and to the flight recorder.
RingBackend::WorkPtr RingBackend::launch(Batch batch, std::chrono::milliseconds timeout,
                                         bool async) {
  RingWork::Call& call = batch.call();
  const bool p2p = c10d::isP2POp(call.type);
  const uint64_t number = (p2p ? transfers_ : collectives_).fetch_add(1) + 1;
  call.timeout = timeoutOr(timeout);
  if (CallRecorder* const recorder = callRecorder(); recorder != nullptr) {
    record(*recorder, call);
  }
  WorkPtr work;
  if (at::hasCallbacks()) {
    RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(number), p2p),
                            std::make_tuple(getGroupUid(), getGroupDesc()), call.inputs,
                            call.outputs, getRank(), batch.doing(), elements(call.inputs),
                            elements(call.outputs), shownDtype(call), call.inputSplits,
                            call.outputSplits, static_cast<int>(globalRanks()[0]), 1, getSize());
    work = start(std::move(batch), async);
  } else {
    work = start(std::move(batch), async);
  }
  coalescing_.add(work);
  return work;
}

RingBackend::WorkPtr RingBackend::start(Batch batch, bool async) {
  std::vector<OpDesc> ops = batch.takeOps();
  RingWork::Call call = batch.takeCall();
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

void RingBackend::record(CallRecorder& recorder, RingWork::Call& call) {
  FlightRecorder::Call recorded = recordedCall(call, getRank(), recorder.stacks);
  recorded.group = recordedGroup();
  recorded.collectives = collectives_.load();
  recorded.transfers = transfers_.load();
  recorded.calls = recorded.collectives + recorded.transfers;
  call.recorded = recorder.calls.record(std::move(recorded));
}

RingWork::RingWork(std::shared_ptr<Group> group, ElasticPool& completers, Call call)
    : Work(group->rank(), call.type, call.title,
           call.inputs.empty() ? std::nullopt : std::make_optional(call.inputs)),
      group_(std::move(group)),
      completers_(completers),
      call_(std::move(call)),
      copies_(call_.epilogue != nullptr) {}

void RingWork::start(std::vector<OpDesc> descs, bool sync) {
  if (call_.epilogue) {
    // Copies into the caller's tensors see the caller's modes (inference, profiling).
    call_.epilogue = [state = at::ThreadLocalState(), epilogue = std::move(call_.epilogue)] {
      at::ThreadLocalStateGuard guard(state);
      epilogue();
    };
  }
  sync_ = sync;
  running_.store(descs.size());
  const bool waits = sync && descs.size() == 1;
  for (OpDesc& desc : descs) {
    // The operation keeps the work, and with it the tensors, until it is done: callers may drop
    // both.
    auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
    auto onDone = [self = std::move(self)](Op& op) mutable {
      self->onOpDone(op);
      if (self.use_count() == 1) {
        // Nobody else has it. Freeing tensors may take the GIL, which a loop must not wait for.
        ElasticPool& completers = self->completers_;
        completers.submit([last = std::move(self)] {});
      }
    };
    ops_.push_back(group_->submit(std::move(desc), std::move(onDone), waits));
  }
  if (sync) {
    waitEnd();
  }
}

// On the loop that completed the operation.
void RingWork::onOpDone(const Op& op) {
  if (!op.status().ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = op.status();
      failed_ = op.describe();
    }
  }
  source_ = op.source();  // read only where there is one operation
  if (running_.fetch_sub(1) != 1) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const Status status = status_;
  const std::string failed = failed_;
  lock.unlock();
  if (status.ok()) {
    succeed();
  } else {
    conclude(status, failed);
  }
}

void RingWork::succeed() {
  if (!copies_) {
    conclude({}, {});
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    arrived_ = true;
  }
  cv_.notify_all();
  if (!sync_) {
    auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
    completers_.submit([self] { self->copyBack(); });
  }
}

// Whoever comes first: a waiter, or a completer where nobody waits.
void RingWork::copyBack() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(copying_, true)) {
      return;
    }
  }
  Status status;
  try {
    call_.epilogue();
  } catch (const std::exception& error) {
    status = {Code::kInternal, error.what()};
  }
  conclude(status, "copying the result back");
  letGo();
}

void RingWork::conclude(const Status& status, const std::string& doing) {
  FuturePtr future;
  FuturePtr futureResult;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    ended_ = Clock::now();
    concluded_ = true;
    future = future_;
    futureResult = futureResult_;
  }
  tellRecorder(status);
  finish(exceptionOf(status, doing));
  if (future == nullptr && futureResult == nullptr) {
    return;
  }
  auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
  completers_.submit([self, future, futureResult] {
    if (futureResult != nullptr) {
      self->resolveResult(futureResult);
    }
    if (future != nullptr) {
      self->resolve(future);
    }
  });
}

void RingWork::tellRecorder(const Status& status) const {
  if (!call_.recorded) {
    return;
  }
  FlightRecorder& recorder = callRecorder()->calls;
  if (call_.type == c10d::OpType::RECVANYSOURCE && status.ok()) {
    recorder.rename(*call_.recorded, recordedName(call_.type, true, rank_, source_));
  }
  recorder.end(*call_.recorded, status, ended_ - started_);
}

// What the operation used besides the results is not kept while somebody keeps the work. Not on a
// loop: freeing tensors may take long, and the GIL.
void RingWork::letGo() {
  Call freed;
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(freed.held, call_.held);
  std::swap(freed.inputs, call_.inputs);
  std::swap(freed.epilogue, call_.epilogue);
}

float RingWork::getDuration() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_, "ringcomm: getDuration() of a work that is not completed: wait() first");
  return std::chrono::duration<float, std::milli>(ended_ - started_).count();
}

bool RingWork::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_;
}

bool RingWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && exception_ == nullptr;
}

bool RingWork::waitUntil(TimePoint until) {
  for (const auto& op : ops_) {
    group_->wait(*op, until);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const bool ended =
      cv_.wait_until(lock, until, [this] { return completed_ || (arrived_ && !copying_); });
  if (ended && !completed_) {
    lock.unlock();
    copyBack();
    lock.lock();
  }
  return cv_.wait_until(lock, until, [this] { return completed_; });
}

void RingWork::waitEnd() { waitUntil(deadlineOf(kNoTimeout)); }

bool RingWork::wait(std::chrono::milliseconds timeout) {
  if (!waitUntil(deadlineOf(timeout))) {
    C10_THROW_ERROR(DistBackendError,
                    "ringcomm: Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                        ops_[0]->describe() + " in wait(); the operation itself goes on");
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (exception_ != nullptr) {
    std::rethrow_exception(exception_);
  }
  lock.unlock();
  letGo();
  return true;
}

void RingWork::abort() { group_->abort("aborted " + ops_[0]->describe()); }

std::vector<at::Tensor> RingWork::result() {
  TORCH_CHECK(isCompleted(), "ringcomm: result() of a work that is not completed: wait() first");
  return call_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFuture() {
  return futureIn(future_, c10::ListType::create(c10::TensorType::get()), &RingWork::resolve);
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFutureResult() {
  return futureIn(futureResult_, c10::IntType::get(), &RingWork::resolveResult);
}

RingWork::FuturePtr RingWork::futureIn(FuturePtr& slot, const c10::TypePtr& type,
                                       void (RingWork::*resolve)(const FuturePtr&) const) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (slot == nullptr) {
    FuturePtr future = c10::make_intrusive<c10::ivalue::Future>(type);
    slot = future;
    if (concluded_) {
      cv_.wait(lock, [this] { return completed_; });
      lock.unlock();
      (this->*resolve)(future);  // before anybody can have attached a callback: it runs none
    }
    return future;
  }
  return slot;
}

void RingWork::resolve(const FuturePtr& future) const {
  if (const std::exception_ptr error = exception()) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(call_.outputs));
  }
}

void RingWork::resolveResult(const FuturePtr& future) const {
  std::unique_lock<std::mutex> lock(mutex_);
  const c10d::WorkResult result = workResultOf(status_);
  lock.unlock();  // callbacks ask the work
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
}

}  // namespace ringcomm
