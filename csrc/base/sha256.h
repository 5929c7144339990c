#pragma once

#include "base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ringcomm {

using Digest = std::array<std::byte, 32>;

inline std::span<const std::byte> asBytes(std::string_view text) noexcept {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// SHA-256 (FIPS 180-4), fed in pieces. finish() ends it: make a new one for the next digest.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  Digest finish() noexcept;

 private:
  static constexpr size_t kBlockBytes = 64;

  void compress(const std::byte* block) noexcept;

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> pending_{};
  size_t pendingBytes_ = 0;
  uint64_t totalBytes_ = 0;
};

Digest sha256(std::span<const std::byte> bytes) noexcept;

// HMAC-SHA256 (RFC 2104), fed in pieces; any length of key.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept;
  void update(std::span<const std::byte> bytes) noexcept { inner_.update(bytes); }
  Digest finish() noexcept;

 private:
  Sha256 inner_;
  Sha256 outer_;
};

Digest hmacSha256(std::span<const std::byte> key, std::span<const std::byte> bytes) noexcept;

// Takes the same time wherever the two differ, so that a guesser learns nothing from the delay.
// The lengths are not secret.
bool equalConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

// Fills with the kernel's random bytes; fails only where getrandom does.
Status randomBytes(std::span<std::byte> out);

}  // namespace ringcomm
