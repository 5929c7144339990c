#include "net/handshake.h"

#include "net/wire.h"

#include <algorithm>

namespace ringcomm {
namespace {

constexpr std::array<std::byte, 4> kMagic = {std::byte{'R'}, std::byte{'N'}, std::byte{'G'},
                                             std::byte{'C'}};

// Every message of every version starts with these 8 bytes, so that two versions can tell each
// other apart: magic, version, kind of message, reason of a refusal.
constexpr size_t kPrologueBytes = 8;
constexpr size_t kVersionAt = 4;
constexpr size_t kTypeAt = 6;
constexpr size_t kReasonAt = 7;

constexpr size_t kGroupAt = 8;
constexpr size_t kGenerationAt = 40;
constexpr size_t kFromAt = 44;
constexpr size_t kToAt = 48;
constexpr size_t kWorldAt = 52;
constexpr size_t kLaneAt = 56;
constexpr size_t kKindAt = 58;
constexpr size_t kZeroAt = 59;
constexpr size_t kHelloNonceAt = 60;
constexpr size_t kHelloBytes = 92;
constexpr size_t kChallengeNonceAt = 8;
constexpr size_t kChallengeMacAt = 40;
constexpr size_t kChallengeBytes = 72;
constexpr size_t kMacAt = 8;  // PROOF, VERDICT
constexpr size_t kProofBytes = 40;
constexpr size_t kVerdictBytes = 40;
static_assert(kHelloBytes == kMaxHandshakeMessage);

enum class Type : uint8_t { kHello = 1, kChallenge, kProof, kVerdict, kRefusal };

// One label per MAC: the MAC of one role is never that of another.
constexpr std::string_view kAcceptorLabel = "ringcomm/acceptr";
constexpr std::string_view kDialerLabel = "ringcomm/dialer.";
constexpr std::string_view kVerdictLabel = "ringcomm/verdict";

using Bytes = std::span<const std::byte>;

std::string_view asText(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string prologue(Type type, Refusal reason = Refusal::kNone) {
  std::array<std::byte, kPrologueBytes> bytes;
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  storeLittle(bytes.data() + kVersionAt, kProtocolVersion);
  storeLittle(bytes.data() + kTypeAt, static_cast<uint8_t>(type));
  storeLittle(bytes.data() + kReasonAt, static_cast<uint8_t>(reason));
  return std::string(asText(bytes));
}

uint8_t typeOf(Bytes message) noexcept { return loadLittle<uint8_t>(message.data() + kTypeAt); }

bool isType(Bytes message, Type type) noexcept {
  return typeOf(message) == static_cast<uint8_t>(type);
}

bool isPlain(Bytes message, Type type) noexcept {
  return isType(message, type) && message[kReasonAt] == std::byte{0};
}

Refusal reasonOf(Bytes message) noexcept {
  const auto reason = loadLittle<uint8_t>(message.data() + kReasonAt);
  return reason <= static_cast<uint8_t>(Refusal::kClosing) ? static_cast<Refusal>(reason)
                                                           : Refusal::kMalformed;
}

uint16_t versionOf(Bytes message) noexcept {
  return loadLittle<uint16_t>(message.data() + kVersionAt);
}

std::string versionsText(Bytes message) {
  return "peer speaks protocol " + std::to_string(versionOf(message)) + ", this side " +
         std::to_string(kProtocolVersion);
}

Digest macOf(std::string_view secret, std::string_view label, std::string_view transcript,
             std::string_view rest = {}) noexcept {
  HmacSha256 mac(asBytes(secret));
  mac.update(asBytes(label));
  mac.update(asBytes(transcript));
  mac.update(asBytes(rest));
  return mac.finish();
}

const char* problemOf(const Hello& hello) noexcept {
  if (hello.worldSize < 2) {
    return "a world of fewer than two ranks";
  }
  if (hello.fromRank < 0 || hello.fromRank >= hello.worldSize || hello.toRank < 0 ||
      hello.toRank >= hello.worldSize) {
    return "a rank outside the world";
  }
  if (hello.fromRank == hello.toRank) {
    return "a rank that dials itself";
  }
  if (hello.kind < ConnectionKind::kData || hello.kind > ConnectionKind::kKnock) {
    return "an unknown kind of connection";
  }
  return nullptr;
}

std::string encodeHello(const Hello& hello, const Nonce& nonce) {
  std::array<std::byte, kHelloBytes> bytes{};
  const std::string head = prologue(Type::kHello);
  std::memcpy(bytes.data(), head.data(), head.size());
  std::copy(hello.group.begin(), hello.group.end(), bytes.begin() + kGroupAt);
  storeLittle(bytes.data() + kGenerationAt, hello.generation);
  storeLittle(bytes.data() + kFromAt, hello.fromRank);
  storeLittle(bytes.data() + kToAt, hello.toRank);
  storeLittle(bytes.data() + kWorldAt, hello.worldSize);
  storeLittle(bytes.data() + kLaneAt, hello.lane);
  storeLittle(bytes.data() + kKindAt, static_cast<uint8_t>(hello.kind));
  std::copy(nonce.begin(), nonce.end(), bytes.begin() + kHelloNonceAt);
  return std::string(asText(bytes));
}

Hello decodeHello(Bytes bytes) noexcept {
  Hello hello;
  std::copy_n(bytes.begin() + kGroupAt, hello.group.size(), hello.group.begin());
  hello.generation = loadLittle<uint32_t>(bytes.data() + kGenerationAt);
  hello.fromRank = loadLittle<int32_t>(bytes.data() + kFromAt);
  hello.toRank = loadLittle<int32_t>(bytes.data() + kToAt);
  hello.worldSize = loadLittle<int32_t>(bytes.data() + kWorldAt);
  hello.lane = loadLittle<uint16_t>(bytes.data() + kLaneAt);
  hello.kind = static_cast<ConnectionKind>(loadLittle<uint8_t>(bytes.data() + kKindAt));
  return hello;
}

std::string describe(const Hello& hello) {
  return "rank " + std::to_string(hello.fromRank) + " of " + std::to_string(hello.worldSize) +
         " to rank " + std::to_string(hello.toRank) + ", generation " +
         std::to_string(hello.generation) +
         (hello.kind == ConnectionKind::kControl ? std::string(", control")
                                                 : ", lane " + std::to_string(hello.lane));
}

std::string fedTooMuch(size_t bytes, size_t wanted) {
  return "was fed " + std::to_string(bytes) + " bytes, " + std::to_string(wanted) + " wanted";
}

}  // namespace

const char* refusalText(Refusal refusal) noexcept {
  switch (refusal) {
#define RC_CASE(name, text) \
  case Refusal::name:       \
    return text;
    RC_REFUSALS(RC_CASE)
#undef RC_CASE
  }
  return "unknown reason";
}

void HandshakeInbox::add(std::span<const std::byte> bytes) noexcept {
  std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<ptrdiff_t>(held_));
  held_ += bytes.size();
}

Status DialerHandshake::start() {
  if (state_ != State::kNew) {
    return {Code::kInternal, "handshake started twice"};
  }
  if (const char* problem = problemOf(hello_)) {
    return fail(Code::kInvalidArgument, std::string("cannot ask for ") + problem);
  }
  Nonce nonce;
  if (Status status = randomBytes(nonce); !status) {
    return fail(status.code(), status.message());
  }
  transcript_ = encodeHello(hello_, nonce);
  output_ = transcript_;
  inbox_.expect(kPrologueBytes);
  state_ = State::kAwaitChallenge;
  return {};
}

Status DialerHandshake::feed(std::span<const std::byte> bytes) {
  RC_RETURN_IF_ERROR(failure_);
  if (bytes.size() > inbox_.wanted()) {
    return fail(Code::kInternal, fedTooMuch(bytes.size(), inbox_.wanted()));
  }
  inbox_.add(bytes);
  if (bytes.empty() || inbox_.wanted() > 0) {
    return {};
  }
  if (inbox_.bytes().size() == kPrologueBytes) {
    return onPrologue();
  }
  return state_ == State::kAwaitChallenge ? onChallenge() : onVerdict();
}

Status DialerHandshake::onPrologue() {
  const auto head = inbox_.bytes();
  if (!std::equal(kMagic.begin(), kMagic.end(), head.begin())) {
    return fail(Code::kProtocol, "what answers there is no ringcomm");
  }
  if (versionOf(head) != kProtocolVersion) {
    refusal_ = Refusal::kVersion;
    return fail(Code::kProtocol, versionsText(head));
  }
  if (isType(head, Type::kRefusal) && reasonOf(head) != Refusal::kNone) {
    refusal_ = reasonOf(head);
    return fail(Code::kRefused, std::string("refused: ") + refusalText(refusal_));
  }
  if (state_ == State::kAwaitChallenge && isPlain(head, Type::kChallenge)) {
    inbox_.expect(kChallengeBytes);
    return {};
  }
  if (state_ == State::kAwaitVerdict && isType(head, Type::kVerdict)) {
    inbox_.expect(kVerdictBytes);
    return {};
  }
  return fail(Code::kProtocol, "unexpected handshake message " + std::to_string(typeOf(head)));
}

Status DialerHandshake::onChallenge() {
  const auto message = inbox_.bytes();
  transcript_ += asText(message.first(kChallengeMacAt));
  const Digest expected = macOf(secret_, kAcceptorLabel, transcript_);
  if (!equalConstantTime(expected, message.subspan(kChallengeMacAt))) {
    // The acceptor would otherwise see no more than an end of file.
    output_ += prologue(Type::kRefusal, Refusal::kWrongSecret);
    return fail(Code::kRefused, "the peer does not prove that it knows the group's secret");
  }
  output_ += prologue(Type::kProof);
  output_ += asText(macOf(secret_, kDialerLabel, transcript_));
  inbox_.clear();
  inbox_.expect(kPrologueBytes);
  state_ = State::kAwaitVerdict;
  return {};
}

Status DialerHandshake::onVerdict() {
  const auto message = inbox_.bytes();
  const Digest expected =
      macOf(secret_, kVerdictLabel, transcript_, asText(message.first(kPrologueBytes)));
  if (!equalConstantTime(expected, message.subspan(kMacAt))) {
    return fail(Code::kRefused, "the peer's verdict does not carry the group's secret");
  }
  if (reasonOf(message) != Refusal::kNone) {
    refusal_ = reasonOf(message);
    return fail(Code::kRefused, std::string("refused: ") + refusalText(refusal_));
  }
  inbox_.clear();
  secret_.clear();
  state_ = State::kDone;
  return {};
}

Status DialerHandshake::fail(Code code, const std::string& message) {
  inbox_.clear();
  state_ = State::kFailed;
  failure_ = Status(code, "handshake with rank " + std::to_string(hello_.toRank) + ": " + message,
                    hello_.toRank);
  return failure_;
}

AcceptorHandshake::AcceptorHandshake(GroupLookup lookup, Admission admit)
    : lookup_(std::move(lookup)), admit_(std::move(admit)) {
  inbox_.expect(kPrologueBytes);
}

Status AcceptorHandshake::feed(std::span<const std::byte> bytes) {
  RC_RETURN_IF_ERROR(failure_);
  if (bytes.size() > inbox_.wanted()) {
    return fail(Code::kInternal, fedTooMuch(bytes.size(), inbox_.wanted()));
  }
  inbox_.add(bytes);
  // A stranger is recognised by its first wrong byte, so that one which sends little and waits is
  // not kept until a timeout.
  const auto held = inbox_.bytes();
  if (!std::equal(held.begin(), held.begin() + std::min(held.size(), kMagic.size()),
                  kMagic.begin())) {
    return fail(Code::kProtocol, "what knocks is no ringcomm");
  }
  if (bytes.empty() || inbox_.wanted() > 0) {
    return {};
  }
  if (inbox_.bytes().size() == kPrologueBytes) {
    return onPrologue();
  }
  return state_ == State::kAwaitHello ? onHello() : onProof();
}

Status AcceptorHandshake::onPrologue() {
  const auto head = inbox_.bytes();
  if (versionOf(head) != kProtocolVersion) {
    return refuseUnproven(Refusal::kVersion, Code::kProtocol, versionsText(head));
  }
  if (state_ == State::kAwaitHello && isPlain(head, Type::kHello)) {
    inbox_.expect(kHelloBytes);
    return {};
  }
  if (state_ == State::kAwaitProof && isPlain(head, Type::kProof)) {
    inbox_.expect(kProofBytes);
    return {};
  }
  if (state_ == State::kAwaitProof && isType(head, Type::kRefusal) &&
      reasonOf(head) != Refusal::kNone) {
    refusal_ = reasonOf(head);
    return fail(Code::kRefused,
                "the dialer (" + describe(hello_) + ") gave up: " + refusalText(refusal_));
  }
  return refuseUnproven(Refusal::kMalformed, Code::kProtocol,
                        "unexpected handshake message " + std::to_string(typeOf(head)));
}

Status AcceptorHandshake::onHello() {
  const auto message = inbox_.bytes();
  hello_ = decodeHello(message);
  const char* problem = problemOf(hello_);
  if (problem != nullptr || message[kZeroAt] != std::byte{0}) {
    return refuseUnproven(Refusal::kMalformed, Code::kProtocol,
                          std::string("asked for ") + (problem ? problem : "an unknown feature"));
  }
  GroupKey key = lookup_(hello_);
  if (key.refusal != Refusal::kNone) {
    return refuseUnproven(key.refusal, Code::kRefused,
                          "refused " + describe(hello_) + ": " + refusalText(key.refusal));
  }
  Nonce nonce;
  if (Status status = randomBytes(nonce); !status) {
    return fail(status.code(), status.message());
  }
  secret_ = std::move(key.secret);
  std::string challenge = prologue(Type::kChallenge);
  challenge += asText(nonce);
  transcript_ = std::string(asText(message)) + challenge;
  output_ += challenge;
  output_ += asText(macOf(secret_, kAcceptorLabel, transcript_));
  inbox_.clear();
  inbox_.expect(kPrologueBytes);
  state_ = State::kAwaitProof;
  return {};
}

Status AcceptorHandshake::onProof() {
  const Digest expected = macOf(secret_, kDialerLabel, transcript_);
  if (!equalConstantTime(expected, inbox_.bytes().subspan(kMacAt))) {
    return refuseUnproven(Refusal::kWrongSecret, Code::kRefused,
                          "what claims to be " + describe(hello_) +
                              " does not prove that it knows the group's secret");
  }
  refusal_ = admit_ ? admit_(hello_) : Refusal::kNone;
  const std::string verdict = prologue(Type::kVerdict, refusal_);
  output_ += verdict;
  output_ += asText(macOf(secret_, kVerdictLabel, transcript_, verdict));
  if (refusal_ != Refusal::kNone) {
    return fail(Code::kRefused, "refused " + describe(hello_) + ": " + refusalText(refusal_));
  }
  inbox_.clear();
  secret_.clear();
  state_ = State::kDone;
  return {};
}

Status AcceptorHandshake::refuseUnproven(Refusal refusal, Code code, const std::string& message) {
  refusal_ = refusal;
  output_ += prologue(Type::kRefusal, refusal);
  return fail(code, message);
}

Status AcceptorHandshake::fail(Code code, const std::string& message) {
  inbox_.clear();
  state_ = State::kFailed;
  failure_ = Status(code, "handshake: " + message);
  return failure_;
}

}  // namespace ringcomm
