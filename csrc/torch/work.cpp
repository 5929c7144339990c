#include "torch/work.h"

#include "torch/flight_recorder.h"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <utility>

namespace ringcomm {

namespace {

TimePoint deadlineOf(std::chrono::milliseconds timeout) {
  // The operation has a deadline of its own; it ends in time also when nobody limits the wait.
  const bool limited = timeout > std::chrono::milliseconds(0);
  return Clock::now() + limitOf(limited ? timeout : std::chrono::milliseconds::max());
}

}  // namespace

std::exception_ptr exceptionOf(const Status& status, const std::string& doing) {
  if (status.ok()) {
    return nullptr;
  }
  // A cause that is about this very operation names it already.
  const bool named = doing.empty() || status.message().find(doing) != std::string::npos;
  const std::string text =
      "ringcomm: " + (named ? std::string() : doing + " failed: ") + status.message();
  try {
    switch (status.code()) {
      case Code::kInvalidArgument:
        C10_THROW_ERROR(ValueError, text);
      case Code::kPeerLost:
      case Code::kRefused:
      case Code::kSystem:
      case Code::kProtocol:
        C10_THROW_ERROR(DistNetworkError, text);
      default:
        C10_THROW_ERROR(DistBackendError, text);
    }
  } catch (...) {
    return std::current_exception();
  }
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
  FlightRecorder& recorder = *FlightRecorder::get();
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
  future->markCompleted(c10::IValue(static_cast<int64_t>(resultCode())));
}

int RingWork::resultCode() const {
  std::lock_guard<std::mutex> lock(mutex_);
  switch (status_.code()) {
    case Code::kOk:
      return static_cast<int>(c10d::WorkResult::SUCCESS);
    case Code::kTimeout:
      return static_cast<int>(c10d::WorkResult::TIMEOUT);
    default:
      return static_cast<int>(c10d::WorkResult::COMM_ERROR);
  }
}

}  // namespace ringcomm
