#pragma once

#include "engine/op.h"

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

// Point-to-point messages for tests, and how they are asked for.
namespace ringcomm::testing {

using Bytes = std::vector<std::byte>;

inline OpDesc transfer(OpDesc::Transfer kind, Bytes& data, int peer, int tag) {
  OpDesc desc;
  desc.transfer = kind;
  desc.dtype = DType::kUInt8;
  desc.peer = peer;
  desc.tag = tag;
  desc.count = data.size();
  desc.buffers = {{data.data(), data.size()}};
  desc.timeout = std::chrono::seconds(30);
  return desc;
}

inline OpDesc sendOf(Bytes& data, int peer, int tag = 0) {
  return transfer(OpDesc::Transfer::kSend, data, peer, tag);
}
inline OpDesc receiveInto(Bytes& data, int peer, int tag = 0) {
  return transfer(OpDesc::Transfer::kReceive, data, peer, tag);
}

inline Bytes message(size_t bytes, uint64_t salt) {
  std::mt19937_64 random(salt);
  Bytes made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    made[i] =
        static_cast<std::byte>(i % 64 == 0 ? random() : static_cast<uint64_t>(made[i - 1]) + 1);
  }
  return made;
}

}  // namespace ringcomm::testing
