#pragma once

#include "engine/rendezvous.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ringcomm {

// torch's Store, whichever it is, as the place where ranks meet.
class StoreRendezvous final : public Rendezvous {
 public:
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(const std::string& key, const std::string& value) override {
    try {
      store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
      return {};
    } catch (const std::exception& error) {
      return storeFailure(error);
    }
  }

  Result<std::string> get(const std::string& key, TimePoint deadline) override {
    // Looks again and again: a blocking wait would keep the store's client from other threads,
    // which may be what the other ranks wait for.
    Duration pause = std::chrono::microseconds(200);
    try {
      while (!store_->check({key})) {
        if (Clock::now() >= deadline) {
          return Status(Code::kTimeout, "the store has no '" + key + "' yet");
        }
        std::this_thread::sleep_for(pause);
        pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(20));
      }
      const std::vector<uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    } catch (const std::exception& error) {
      return storeFailure(error);
    }
  }

  Status remove(const std::string& key) override {
    try {
      store_->deleteKey(key);
      return {};
    } catch (const std::exception& error) {
      return storeFailure(error);
    }
  }

 private:
  static Status storeFailure(const std::exception& error) {
    const std::string text = error.what();
    return {Code::kSystem, "the torch store failed: " + text.substr(0, text.find('\n'))};
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ringcomm
