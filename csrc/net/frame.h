#pragma once

#include "base/status.h"
#include "net/wire.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace ringcomm {

// The header in front of every slice on a data lane. It only checks: the receiver knows from its
// own plan what has to come next and compares. What the numbers of `collective`, `dtype`,
// `reduceOp`, `flags` and `root` mean is the engine's business; this codec carries them.
struct FrameHeader {
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t reduceOp = 0;
  uint8_t flags = 0;
  uint64_t sequence = 0;  // number of the operation in its group
  uint64_t count = 0;     // elements of the operation
  int32_t root = -1;
  uint32_t message = 0;  // number of this message between the two ranks within the operation
  uint32_t length = 0;   // payload bytes of this slice
  uint64_t offset = 0;   // of the slice within the message

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr uint32_t kMaxSliceBytes = 1u << 20;
inline constexpr uint32_t kFrameMagic = 0x01464352;  // "RCF" and the layout's version, 1

namespace frame_layout {
inline constexpr size_t kCollective = 4;
inline constexpr size_t kDType = 5;
inline constexpr size_t kReduceOp = 6;
inline constexpr size_t kFlags = 7;
inline constexpr size_t kSequence = 8;
inline constexpr size_t kCount = 16;
inline constexpr size_t kRoot = 24;
inline constexpr size_t kMessage = 28;
inline constexpr size_t kLength = 32;
inline constexpr size_t kCheck = 36;
inline constexpr size_t kOffset = 40;
}  // namespace frame_layout

// Tells a header from payload bytes read at the wrong place, with a miss in 2^32. Six dependent
// multiplications: a few nanoseconds a slice. It is no protection against an attacker.
inline uint32_t frameCheck(std::span<const std::byte, kFrameHeaderBytes> header) noexcept {
  uint64_t hash = 0;
  for (size_t at = 0; at < kFrameHeaderBytes; at += 8) {
    uint64_t word = loadLittle<uint64_t>(header.data() + at);
    if (at == frame_layout::kLength) {
      word &= 0xFFFFFFFFu;  // the upper half is the check itself
    }
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash);
}

inline void encode(const FrameHeader& header,
                   std::span<std::byte, kFrameHeaderBytes> out) noexcept {
  using namespace frame_layout;
  std::byte* to = out.data();
  storeLittle(to, kFrameMagic);
  storeLittle(to + kCollective, header.collective);
  storeLittle(to + kDType, header.dtype);
  storeLittle(to + kReduceOp, header.reduceOp);
  storeLittle(to + kFlags, header.flags);
  storeLittle(to + kSequence, header.sequence);
  storeLittle(to + kCount, header.count);
  storeLittle(to + kRoot, header.root);
  storeLittle(to + kMessage, header.message);
  storeLittle(to + kLength, header.length);
  storeLittle(to + kOffset, header.offset);
  storeLittle(to + kCheck, frameCheck(out));
}

// Says which rule the header breaks; out of line, since it is never on the hot path.
Status describeBadFrame(std::span<const std::byte, kFrameHeaderBytes> in);

// kProtocol when the bytes are no header, when the slice is longer than kMaxSliceBytes, or when its
// end is not representable.
inline Result<FrameHeader> decodeFrame(std::span<const std::byte, kFrameHeaderBytes> in) {
  using namespace frame_layout;
  const std::byte* from = in.data();
  FrameHeader header;
  header.length = loadLittle<uint32_t>(from + kLength);
  header.offset = loadLittle<uint64_t>(from + kOffset);
  if (loadLittle<uint32_t>(from) != kFrameMagic || header.length > kMaxSliceBytes ||
      header.offset > UINT64_MAX - header.length ||
      loadLittle<uint32_t>(from + kCheck) != frameCheck(in)) {
    return describeBadFrame(in);
  }
  header.collective = loadLittle<uint8_t>(from + kCollective);
  header.dtype = loadLittle<uint8_t>(from + kDType);
  header.reduceOp = loadLittle<uint8_t>(from + kReduceOp);
  header.flags = loadLittle<uint8_t>(from + kFlags);
  header.sequence = loadLittle<uint64_t>(from + kSequence);
  header.count = loadLittle<uint64_t>(from + kCount);
  header.root = loadLittle<int32_t>(from + kRoot);
  header.message = loadLittle<uint32_t>(from + kMessage);
  return header;
}

// What two ranks tell each other on the control connection of a group.
enum class ControlKind : uint8_t {
  kFailure = 1,    // the group has failed: why, and because of whom
  kGoodbye = 2,    // the sender leaves in order: the end of its connections is no failure
  kHeartbeat = 3,  // the sender is alive
};

struct ControlMessage {
  ControlKind kind = ControlKind::kHeartbeat;
  Code code = Code::kOk;  // kFailure: never kOk
  int32_t rank = -1;      // kFailure: the rank that it is about, -1: none
  std::string text;       // kFailure: for people

  friend bool operator==(const ControlMessage&, const ControlMessage&) = default;
};

inline constexpr size_t kMaxControlText = 2048;

// A text longer than kMaxControlText is cut at a character's boundary. A failure with code kOk goes
// out as kInternal, since a receiver takes kOk for a violation.
std::string encodeControl(const ControlMessage& message);

// Cuts the control connection's bytes, which come in arbitrary pieces, into messages. Holds at most
// one message. One thread at a time.
class ControlParser {
 public:
  // Consumes from the front of `bytes` up to the end of the next message and gives it; an empty
  // optional says that all of `bytes` is consumed and more is needed. Call it until it does. After
  // an error (kProtocol) the stream cannot be read on, and every later call gives the same error.
  // Texts come out as valid UTF-8 without control characters.
  Result<std::optional<ControlMessage>> next(std::span<const std::byte>& bytes);

 private:
  static constexpr size_t kLengthBytes = 2;
  static constexpr size_t kFailureFixedBytes = 6;  // kind, code, rank

  Status checkLength(size_t length) const;
  Result<std::optional<ControlMessage>> decodeBody(std::span<const std::byte> body);

  std::array<std::byte, kLengthBytes + kFailureFixedBytes + kMaxControlText> buffer_{};
  size_t held_ = 0;
  Status failure_;
};

}  // namespace ringcomm
