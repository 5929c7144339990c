#include "engine/flight_recorder.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

using namespace ringcomm;

namespace {

FlightRecorder::Call named(const std::string& name) {
  FlightRecorder::Call call;
  call.name = name;
  return call;
}

std::vector<std::string> names(const FlightRecorder& recorder) {
  std::vector<std::string> all;
  for (const auto& entry : recorder.entries()) {
    all.push_back(entry.call.name);
  }
  return all;
}

int64_t nanosOfDay() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TEST_CASE("a call is kept as it was told, and is started until it ends") {
  FlightRecorder recorder(4);
  CHECK(recorder.entries().empty());
  FlightRecorder::Call call = named("all_reduce");
  call.group = std::make_shared<FlightRecorder::Group>(FlightRecorder::Group{"g", "of tests", {3}});
  call.inputs = {{{2, 5}, "Float"}};
  call.calls = 7;
  call.timeout = std::chrono::seconds(9);
  const int64_t before = nanosOfDay();
  const uint64_t id = recorder.record(std::move(call));
  auto entries = recorder.entries();
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].id == id);
  CHECK(entries[0].call.group->description == "of tests");
  CHECK(entries[0].call.inputs[0].sizes == std::vector<int64_t>{2, 5});
  CHECK(std::string(entries[0].call.inputs[0].dtype) == "Float");
  CHECK(entries[0].call.calls == 7);
  CHECK(entries[0].call.timeout == std::chrono::seconds(9));
  CHECK(entries[0].state == FlightRecorder::State::kStarted);
  CHECK(entries[0].createdNanos >= before);
  CHECK(entries[0].endedNanos == 0);

  recorder.end(id, {}, std::chrono::microseconds(2500));
  entries = recorder.entries();
  CHECK(entries[0].state == FlightRecorder::State::kCompleted);
  CHECK(entries[0].millis == doctest::Approx(2.5));
  CHECK(entries[0].endedNanos >= entries[0].createdNanos);
  CHECK(entries[0].endedNanos <= nanosOfDay());
}

TEST_CASE("a call that failed says why") {
  FlightRecorder recorder(1);
  recorder.end(recorder.record(named("barrier")), {Code::kTimeout, "rank 1 did not call"}, {});
  const auto entries = recorder.entries();
  CHECK(entries[0].state == FlightRecorder::State::kFailed);
  CHECK(entries[0].error == "rank 1 did not call");
}

TEST_CASE("the oldest calls make room, and their ends come to nothing") {
  FlightRecorder recorder(3);
  std::vector<uint64_t> ids;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    ids.push_back(recorder.record(named(name)));
  }
  CHECK(ids == std::vector<uint64_t>{0, 1, 2, 3, 4});
  CHECK(names(recorder) == std::vector<std::string>{"c", "d", "e"});
  // "a" had the place that "d" has now, "b" that of "e".
  recorder.end(ids[0], {Code::kTimeout, "late"}, {});
  recorder.rename(ids[1], "x");
  CHECK(names(recorder) == std::vector<std::string>{"c", "d", "e"});
  for (const auto& entry : recorder.entries()) {
    CHECK(entry.state == FlightRecorder::State::kStarted);
    CHECK(entry.error.empty());
  }
  recorder.rename(ids[4], "recv 0<-1");
  CHECK(names(recorder) == std::vector<std::string>{"c", "d", "recv 0<-1"});
}

TEST_CASE("a number that was never given is nobody's") {
  FlightRecorder recorder(2);
  recorder.end(0, {Code::kTimeout, "nobody"}, {});
  recorder.record(named("a"));
  CHECK(recorder.entries()[0].error.empty());
}

TEST_CASE("a stack is let go of when its call makes room") {
  FlightRecorder recorder(1);
  auto stack = std::make_shared<int>(5);
  const std::weak_ptr<int> watched = stack;
  FlightRecorder::Call call = named("a");
  call.stack = std::move(stack);
  recorder.record(std::move(call));
  CHECK(*std::static_pointer_cast<int>(recorder.entries()[0].call.stack) == 5);
  recorder.record(named("b"));
  CHECK(watched.expired());
}

TEST_CASE("the thread that calls is named") {
  FlightRecorder recorder(1);
  std::thread([&] {
    ::pthread_setname_np(::pthread_self(), "caller");
    recorder.record(named("a"));
  }).join();
  CHECK(recorder.entries()[0].thread == "caller");
}

TEST_CASE("threads record, end and look at the same time") {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  FlightRecorder recorder(64);
  std::vector<std::set<uint64_t>> given(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&recorder, &ids = given[static_cast<size_t>(t)], t] {
      for (int i = 0; i < kCalls; ++i) {
        const uint64_t id = recorder.record(named(std::to_string(t)));
        ids.insert(id);
        recorder.end(id, {}, std::chrono::milliseconds(t));
      }
    });
  }
  for (int look = 0; look < 200; ++look) {
    const auto entries = recorder.entries();
    for (size_t i = 1; i < entries.size(); ++i) {
      REQUIRE(entries[i].id == entries[i - 1].id + 1);
    }
  }
  std::set<uint64_t> all;
  for (size_t t = 0; t < kThreads; ++t) {
    threads[t].join();
    all.insert(given[t].begin(), given[t].end());
  }
  CHECK(all.size() == size_t{kThreads} * kCalls);  // no number was given twice
  const auto entries = recorder.entries();
  CHECK(entries.size() == 64);
  CHECK(entries.back().id == uint64_t{kThreads} * kCalls - 1);
  for (const auto& entry : entries) {
    CHECK(entry.state == FlightRecorder::State::kCompleted);
    CHECK(entry.millis == std::stof(entry.call.name));  // each was ended by its own thread
  }
}
