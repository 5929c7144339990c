#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

namespace ringcomm {

// Things that wait by peer and tag, each kind in the order in which it came. However many wait, one
// is found at once. One thread at a time.
template <typename T>
class MatchQueues {
 public:
  void push(int peer, int tag, T value) {
    queues_[keyOf(peer, tag)].push_back({nextOrder_++, std::move(value)});
  }

  // Of all with this tag and one of these peers the one that came first.
  std::optional<T> take(std::span<const int> peers, int tag) {
    auto first = queues_.end();
    for (const int peer : peers) {
      const auto found = queues_.find(keyOf(peer, tag));
      if (found != queues_.end() &&
          (first == queues_.end() || found->second.front().order < first->second.front().order)) {
        first = found;
      }
    }
    if (first == queues_.end()) {
      return {};
    }
    std::optional<T> value = std::move(first->second.front().value);
    first->second.pop_front();
    if (first->second.empty()) {
      queues_.erase(first);
    }
    return value;
  }

  void clear() { queues_.clear(); }

 private:
  struct Entry {
    uint64_t order;
    T value;
  };

  static uint64_t keyOf(int peer, int tag) {
    return uint64_t{static_cast<uint32_t>(peer)} << 32 | static_cast<uint32_t>(tag);
  }

  uint64_t nextOrder_ = 0;
  std::unordered_map<uint64_t, std::list<Entry>> queues_;  // none of them empty
};

}  // namespace ringcomm
