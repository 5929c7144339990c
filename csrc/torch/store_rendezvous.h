#pragma once

#include "engine/rendezvous.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
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
    const auto left = std::max<int64_t>(toMillis(deadline - Clock::now()), 1);
    try {
      store_->wait({key}, std::chrono::milliseconds(left));
    } catch (const std::exception& error) {
      // Stores say "too late" and "store lost" by the same exception; the clock tells them apart.
      return Clock::now() + std::chrono::milliseconds(50) >= deadline
                 ? Status(Code::kTimeout, "the store has no '" + key + "' yet")
                 : storeFailure(error);
    }
    try {
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
