#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <sys/random.h>

namespace ringcomm {
namespace {

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t loadBig(const std::byte* from) noexcept {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    value = (value << 8) | std::to_integer<uint32_t>(from[i]);
  }
  return value;
}

template <typename T>
void storeBig(std::byte* to, T value) noexcept {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
  }
}

}  // namespace

void Sha256::compress(const std::byte* block) noexcept {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = loadBig(block + 4 * i);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + s1 + choice + kRoundConstants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + s0 + majority;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < add.size(); ++i) {
    state_[i] += add[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
  totalBytes_ += bytes.size();
  while (!bytes.empty()) {
    if (pendingBytes_ == 0 && bytes.size() >= kBlockBytes) {
      compress(bytes.data());
      bytes = bytes.subspan(kBlockBytes);
      continue;
    }
    const size_t take = std::min(kBlockBytes - pendingBytes_, bytes.size());
    std::memcpy(pending_.data() + pendingBytes_, bytes.data(), take);
    pendingBytes_ += take;
    bytes = bytes.subspan(take);
    if (pendingBytes_ == kBlockBytes) {
      compress(pending_.data());
      pendingBytes_ = 0;
    }
  }
}

Digest Sha256::finish() noexcept {
  const uint64_t bits = totalBytes_ * 8;
  std::array<std::byte, kBlockBytes> padding{};
  padding[0] = std::byte{0x80};
  const size_t lengthAt = kBlockBytes - sizeof bits;
  const size_t padBytes =
      (pendingBytes_ < lengthAt ? lengthAt : lengthAt + kBlockBytes) - pendingBytes_;
  update(std::span(padding).first(padBytes));
  std::array<std::byte, sizeof bits> length;
  storeBig(length.data(), bits);
  update(length);
  Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) {
    storeBig(digest.data() + 4 * i, state_[i]);
  }
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) noexcept {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

HmacSha256::HmacSha256(std::span<const std::byte> key) noexcept {
  std::array<std::byte, 64> block{};
  Digest shortened;
  if (key.size() > block.size()) {
    shortened = sha256(key);
    key = shortened;
  }
  if (!key.empty()) {
    std::memcpy(block.data(), key.data(), key.size());
  }
  std::array<std::byte, 64> padded;
  std::transform(block.begin(), block.end(), padded.begin(),
                 [](std::byte b) { return b ^ std::byte{0x36}; });
  inner_.update(padded);
  std::transform(block.begin(), block.end(), padded.begin(),
                 [](std::byte b) { return b ^ std::byte{0x5c}; });
  outer_.update(padded);
}

Digest HmacSha256::finish() noexcept {
  const Digest digest = inner_.finish();
  outer_.update(digest);
  return outer_.finish();
}

Digest hmacSha256(std::span<const std::byte> key, std::span<const std::byte> bytes) noexcept {
  HmacSha256 mac(key);
  mac.update(bytes);
  return mac.finish();
}

bool equalConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) {
    return false;
  }
  std::byte difference{0};
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= a[i] ^ b[i];
    // The compiler must not see that the rest cannot change the answer.
    asm volatile("" : "+r"(difference));
  }
  return difference == std::byte{0};
}

Status randomBytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return Status::fromErrno("getrandom", errno);
    }
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace ringcomm
