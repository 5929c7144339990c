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

// The header as six little-endian words, which is how it is written and read: storing field by
// field and reading words back for the check would stall on every word.
using FrameWords = std::array<uint64_t, kFrameHeaderBytes / 8>;

// Tells a header from payload bytes read at the wrong place, with a miss in 2^32. Three independent
// multiplications of 64 by 64 bits and one over their sum, a few nanoseconds; a chain of one short
// multiplication a word lets through differences in the upper bits of two neighbouring words. It is
// no protection against an attacker. The constants are the binary digits of pi behind the point.
inline uint32_t frameCheck(const FrameWords& words) noexcept {
  constexpr std::array<uint64_t, 8> kPi = {
      0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89,
      0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917};
  const auto fold = [](uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  const uint64_t length = words[4] & 0xFFFFFFFF;  // the upper half is the check itself
  const uint64_t sum = fold(words[0] ^ kPi[0], words[1] ^ kPi[1]) +
                       fold(words[2] ^ kPi[2], words[3] ^ kPi[3]) +
                       fold(length ^ kPi[4], words[5] ^ kPi[5]);
  return static_cast<uint32_t>(fold(sum ^ kPi[6], kPi[7]));
}

inline FrameWords loadFrameWords(std::span<const std::byte, kFrameHeaderBytes> in) noexcept {
  FrameWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = loadLittle<uint64_t>(in.data() + 8 * i);
  }
  return words;
}

inline void encode(const FrameHeader& header,
                   std::span<std::byte, kFrameHeaderBytes> out) noexcept {
  FrameWords words = {kFrameMagic | uint64_t{header.collective} << 32 |
                          uint64_t{header.dtype} << 40 | uint64_t{header.reduceOp} << 48 |
                          uint64_t{header.flags} << 56,
                      header.sequence,
                      header.count,
                      static_cast<uint32_t>(header.root) | uint64_t{header.message} << 32,
                      header.length,
                      header.offset};
  words[4] |= uint64_t{frameCheck(words)} << 32;
  for (size_t i = 0; i < words.size(); ++i) {
    storeLittle(out.data() + 8 * i, words[i]);
  }
}

// Says which rule the header breaks; out of line, since it is never on the hot path.
Status describeBadFrame(std::span<const std::byte, kFrameHeaderBytes> in);

// kProtocol when the bytes are no header, when the slice is longer than kMaxSliceBytes, or when its
// end is not representable.
inline Result<FrameHeader> decodeFrame(std::span<const std::byte, kFrameHeaderBytes> in) {
  const FrameWords words = loadFrameWords(in);
  const auto length = static_cast<uint32_t>(words[4]);
  if (static_cast<uint32_t>(words[0]) != kFrameMagic || words[4] >> 32 != frameCheck(words) ||
      length > kMaxSliceBytes || words[5] > UINT64_MAX - length) {
    return describeBadFrame(in);
  }
  return FrameHeader{.collective = static_cast<uint8_t>(words[0] >> 32),
                     .dtype = static_cast<uint8_t>(words[0] >> 40),
                     .reduceOp = static_cast<uint8_t>(words[0] >> 48),
                     .flags = static_cast<uint8_t>(words[0] >> 56),
                     .sequence = words[1],
                     .count = words[2],
                     .root = static_cast<int32_t>(words[3]),
                     .message = static_cast<uint32_t>(words[3] >> 32),
                     .length = length,
                     .offset = words[5]};
}

// What two ranks tell each other on the control connection of a group.
enum class ControlKind : uint8_t {
  kFailure = 1,   // the group has failed: why, and because of whom
  kGoodbye = 2,   // the sender leaves in order: the end of its connections is no failure
  kQuestion = 3,  // has the receiver called operation number `sequence`?
  kAnswer = 4,    // to a question
  kCall = 5,      // what the sender has called, and what it exchanges with the receiver in it
};

struct ControlMessage {
  ControlKind kind = ControlKind::kGoodbye;
  Code code = Code::kOk;  // kFailure: never kOk
  int32_t rank = -1;      // kFailure: the rank that it is about, -1: none
  std::string text;       // kFailure: for people
  uint64_t sequence = 0;  // kQuestion, kAnswer
  bool called = false;    // kAnswer
  FrameHeader call{};     // kCall: the operation; message, length and offset are 0
  uint64_t gives = 0;     // kCall: bytes that the sender's plan sends to the receiver,
  uint64_t takes = 0;     // and bytes that it expects from it

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
