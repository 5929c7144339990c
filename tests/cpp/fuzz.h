#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>

namespace ringcomm::testing {

// Random inputs for the decoders: bounded by tries and by time, so that a sanitizer build on a busy
// machine ends too. The seed is new for each run; print it with a failure (INFO).
class Fuzz {
 public:
  static constexpr int kTries = 200'000;

  Fuzz() : seed_(std::random_device{}()), engine_(seed_) {}

  uint64_t seed() const { return seed_; }
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  std::byte byte() { return static_cast<std::byte>(engine_()); }

  // True `kTries` times, or until two seconds have passed.
  bool more() {
    return tries_++ < kTries && (tries_ % 64 != 0 || std::chrono::steady_clock::now() - start_ <
                                                         std::chrono::seconds(2));
  }
  int tries() const { return tries_; }

  std::string bytes(size_t size) {
    std::string text(size, '\0');
    for (char& c : text) {
      c = static_cast<char>(byte());
    }
    return text;
  }

  // Changes `text` for sure: flipped bits, set bytes, cut, repeated or inserted pieces.
  std::string mutate(const std::string& text) {
    std::string changed = text;
    while (changed == text) {
      for (uint64_t edits = 1 + below(4); edits > 0; --edits) {
        edit(changed);
      }
    }
    return changed;
  }

  // As mutate, without a change of length.
  std::string flip(const std::string& text) {
    std::string changed = text;
    while (changed == text) {
      for (uint64_t edits = 1 + below(4); edits > 0; --edits) {
        flipBit(changed);
      }
    }
    return changed;
  }

 private:
  void flipBit(std::string& text) {
    char& c = text[below(text.size())];
    c = static_cast<char>(c ^ (1 << below(8)));
  }

  void edit(std::string& text) {
    if (text.empty()) {
      text = bytes(1 + below(8));
      return;
    }
    const size_t at = below(text.size());
    switch (below(5)) {
      case 0:
        flipBit(text);
        break;
      case 1: {
        constexpr unsigned char kEdges[] = {0, 1, 0x7F, 0x80, 0xFF};
        text[at] = static_cast<char>(kEdges[below(sizeof kEdges)]);
        break;
      }
      case 2:
        text.resize(at);
        break;
      case 3:
        text.insert(at, text.substr(at, 1 + below(16)));
        break;
      default:
        text.insert(at, bytes(1 + below(8)));
    }
  }

  uint64_t seed_;
  std::mt19937_64 engine_;
  int tries_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ringcomm::testing
