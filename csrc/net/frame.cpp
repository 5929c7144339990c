#include "net/frame.h"

#include <algorithm>

namespace ringcomm {
namespace {

constexpr size_t kLengthBytes = 2;
constexpr size_t kKindAt = 0;
constexpr size_t kCodeAt = 1;
constexpr size_t kRankAt = 2;
constexpr size_t kTextAt = 6;
constexpr size_t kSequenceAt = 1;
constexpr size_t kCalledAt = 9;
constexpr size_t kCallAt = 1;
constexpr size_t kGivesAt = kCallAt + kFrameHeaderBytes;
constexpr size_t kTakesAt = kGivesAt + 8;
constexpr size_t kAnswerBytes = 10;
constexpr size_t kMostFixedBytes = kTakesAt + 8;
constexpr uint8_t kLastCode = static_cast<uint8_t>(Code::kInternal);

// Length of a message without its text; 0 for a kind that does not exist.
size_t fixedBytes(ControlKind kind) noexcept {
  switch (kind) {
    case ControlKind::kFailure:
      return kTextAt;
    case ControlKind::kGoodbye:
      return 1;
    case ControlKind::kQuestion:
      return kCalledAt;
    case ControlKind::kAnswer:
      return kAnswerBytes;
    case ControlKind::kCall:
      return kMostFixedBytes;
  }
  return 0;
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 0xF];
  }
  return text;
}

// Bytes of the well-formed UTF-8 character at the front of `text`, 0 when there is none (RFC 3629:
// no overlong forms, no surrogates, nothing above U+10FFFF).
size_t characterBytes(std::string_view text) noexcept {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  const size_t size = lead < 0x80   ? 1
                      : lead < 0xC2 ? 0
                      : lead < 0xE0 ? 2
                      : lead < 0xF0 ? 3
                      : lead < 0xF5 ? 4
                                    : 0;
  if (size == 0 || size > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  const bool outside = (lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) > 0x9F) ||
                       (lead == 0xF0 && at(1) < 0x90) || (lead == 0xF4 && at(1) > 0x8F);
  return outside ? 0 : size;
}

// The text ends up in logs, terminals and Python strings: what none of them should see is a '?'.
std::string printable(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t size = characterBytes(text);
    const auto lead = static_cast<uint8_t>(text.front());
    const bool control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F ||
                         (lead == 0xC2 && size == 2 && static_cast<uint8_t>(text[1]) < 0xA0);
    if (size == 0 || control) {
      clean += '?';
      text.remove_prefix(std::max<size_t>(size, 1));
    } else {
      clean += text.substr(0, size);
      text.remove_prefix(size);
    }
  }
  return clean;
}

std::string_view cutAtCharacter(std::string_view text) noexcept {
  if (text.size() <= kMaxControlText) {
    return text;
  }
  size_t size = kMaxControlText;
  for (size_t back = 0; back < 3 && (static_cast<uint8_t>(text[size]) & 0xC0) == 0x80; ++back) {
    --size;
  }
  return text.substr(0, size);
}

}  // namespace

Status describeBadFrame(std::span<const std::byte, kFrameHeaderBytes> in) {
  const FrameWords words = loadFrameWords(in);
  const auto length = static_cast<uint32_t>(words[4]);
  std::string what;
  if (static_cast<uint32_t>(words[0]) != kFrameMagic) {
    what = "it does not start with \"RCF\" and layout 1";
  } else if (words[4] >> 32 != frameCheck(words)) {
    what = "its check field does not fit the rest";
  } else if (length > kMaxSliceBytes) {
    what = "it announces a slice of " + std::to_string(length) + " bytes, more than the " +
           std::to_string(kMaxSliceBytes) + " allowed";
  } else {
    what = "its slice of " + std::to_string(length) + " bytes at offset " +
           std::to_string(words[5]) + " ends beyond 2^64";
  }
  return {Code::kProtocol, "bad frame header: " + what + " (" + hex(in) + ")"};
}

std::string encodeControl(const ControlMessage& message) {
  std::array<std::byte, kLengthBytes + kMostFixedBytes> head{};
  std::byte* body = head.data() + kLengthBytes;
  storeLittle(body + kKindAt, static_cast<uint8_t>(message.kind));
  std::string_view text;
  if (message.kind == ControlKind::kFailure) {
    text = cutAtCharacter(message.text);
    const Code code = message.code == Code::kOk ? Code::kInternal : message.code;
    storeLittle(body + kCodeAt, static_cast<uint8_t>(code));
    storeLittle(body + kRankAt, std::max(message.rank, -1));
  } else if (message.kind == ControlKind::kCall) {
    encode(message.call,
           std::span<std::byte, kFrameHeaderBytes>(body + kCallAt, kFrameHeaderBytes));
    storeLittle(body + kGivesAt, message.gives);
    storeLittle(body + kTakesAt, message.takes);
  } else if (message.kind != ControlKind::kGoodbye) {
    storeLittle(body + kSequenceAt, message.sequence);
    storeLittle(body + kCalledAt, static_cast<uint8_t>(message.called ? 1 : 0));
  }
  const size_t fixed = fixedBytes(message.kind);
  storeLittle(head.data(), static_cast<uint16_t>(fixed + text.size()));
  std::string bytes(reinterpret_cast<const char*>(head.data()), kLengthBytes + fixed);
  bytes += text;
  return bytes;
}

Result<std::optional<ControlMessage>> ControlParser::next(std::span<const std::byte>& bytes) {
  RC_RETURN_IF_ERROR(failure_);
  const auto fillTo = [&](size_t target) {
    const size_t take = std::min(target - held_, bytes.size());
    std::copy_n(bytes.begin(), take, buffer_.begin() + static_cast<ptrdiff_t>(held_));
    held_ += take;
    bytes = bytes.subspan(take);
    return held_ == target;
  };
  if (held_ < kLengthBytes && !fillTo(kLengthBytes)) {
    return std::optional<ControlMessage>();
  }
  const size_t length = loadLittle<uint16_t>(buffer_.data());
  failure_ = checkLength(length);
  RC_RETURN_IF_ERROR(failure_);
  if (!fillTo(kLengthBytes + length)) {
    return std::optional<ControlMessage>();
  }
  held_ = 0;
  auto message = decodeBody(std::span(buffer_).subspan(kLengthBytes, length));
  failure_ = message.status();
  return message;
}

Status ControlParser::checkLength(size_t length) const {
  if (length >= 1 && length <= buffer_.size() - kLengthBytes) {
    return {};
  }
  return {Code::kProtocol, "bad control message: length " + std::to_string(length) +
                               ", where 1 to " + std::to_string(buffer_.size() - kLengthBytes) +
                               " is allowed"};
}

Result<std::optional<ControlMessage>> ControlParser::decodeBody(std::span<const std::byte> body) {
  const auto bad = [](const std::string& what) {
    return Status(Code::kProtocol, "bad control message: " + what);
  };
  const auto kind = loadLittle<uint8_t>(body.data() + kKindAt);
  ControlMessage message;
  message.kind = static_cast<ControlKind>(kind);
  const size_t fixed = fixedBytes(message.kind);
  if (fixed == 0) {
    return bad("kind " + std::to_string(kind));
  }
  if (body.size() < fixed || (body.size() > fixed && message.kind != ControlKind::kFailure)) {
    return bad("kind " + std::to_string(kind) + " with " + std::to_string(body.size()) + " bytes");
  }
  if (message.kind == ControlKind::kFailure) {
    const auto code = loadLittle<uint8_t>(body.data() + kCodeAt);
    message.code = static_cast<Code>(code);
    message.rank = loadLittle<int32_t>(body.data() + kRankAt);
    if (code == 0 || code > kLastCode) {
      return bad("failure code " + std::to_string(code));
    }
    if (message.rank < -1) {
      return bad("rank " + std::to_string(message.rank));
    }
    const auto text = body.subspan(kTextAt);
    message.text = printable({reinterpret_cast<const char*>(text.data()), text.size()});
  } else if (message.kind == ControlKind::kCall) {
    Result<FrameHeader> call = decodeFrame(body.subspan<kCallAt, kFrameHeaderBytes>());
    RC_RETURN_IF_ERROR(call.status());
    message.call = *call;
    message.gives = loadLittle<uint64_t>(body.data() + kGivesAt);
    message.takes = loadLittle<uint64_t>(body.data() + kTakesAt);
  } else if (message.kind != ControlKind::kGoodbye) {
    message.sequence = loadLittle<uint64_t>(body.data() + kSequenceAt);
  }
  if (message.kind == ControlKind::kAnswer) {
    const auto called = loadLittle<uint8_t>(body.data() + kCalledAt);
    if (called > 1) {
      return bad("answer " + std::to_string(called));
    }
    message.called = called == 1;
  }
  return std::optional(std::move(message));
}

}  // namespace ringcomm
