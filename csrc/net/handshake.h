#pragma once

#include "base/sha256.h"
#include "base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

// Two state machines that let both ends of a new connection prove that they know the group's secret
// before either believes a word. No socket, no clock: the driver reads exactly bytesWanted() bytes
// at a time (never more, so that no byte of the traffic behind the handshake is swallowed), feeds
// them, and writes takeOutput(), also after a failure, since it may hold the refusal that tells the
// peer why. docs/protocol.md has the messages byte by byte.
//
//     dialer                         acceptor
//       HELLO   ------------------->            who wants to speak to whom, dialer's nonce
//               <-------------------  CHALLENGE acceptor's nonce and MAC    (or REFUSAL)
//       PROOF   ------------------->            dialer's MAC
//               <-------------------  VERDICT   accepted, or refused and why, with a MAC
namespace ringcomm {

inline constexpr uint16_t kProtocolVersion = 1;

inline constexpr size_t kMaxHandshakeMessage = 92;  // HELLO

using GroupId = Digest;
using Nonce = std::array<std::byte, 32>;

inline GroupId groupIdOf(std::string_view groupName) noexcept { return sha256(asBytes(groupName)); }

// kKnock carries nothing: it asks the lower rank, which is the one that dials, to do so now.
enum class ConnectionKind : uint8_t { kData = 1, kControl = 2, kKnock = 3 };

// What a connection is for; all of it is bound by the MACs.
struct Hello {
  GroupId group{};
  uint32_t generation = 0;
  int32_t fromRank = 0;  // of the dialer
  int32_t toRank = 0;    // whom the dialer believes to reach
  int32_t worldSize = 0;
  uint16_t lane = 0;
  ConnectionKind kind = ConnectionKind::kData;

  friend bool operator==(const Hello&, const Hello&) = default;
};

// Why one side turns the other down; on the wire as one byte.
#define RC_REFUSALS(X)                                   \
  X(kNone, "accepted")                                   \
  X(kVersion, "another version of the protocol")         \
  X(kMalformed, "malformed message")                     \
  X(kUnknownGroup, "no such group")                      \
  X(kWrongGeneration, "another generation of the group") \
  X(kWrongWorld, "another world size")                   \
  X(kWrongRank, "not that rank")                         \
  X(kWrongSecret, "the secrets differ")                  \
  X(kDuplicate, "that connection exists already")        \
  X(kClosing, "shutting down")

enum class Refusal : uint8_t {
#define RC_ENUM(name, text) name,
  RC_REFUSALS(RC_ENUM)
#undef RC_ENUM
};

const char* refusalText(Refusal refusal) noexcept;

// What an acceptor knows about the group that a stranger asks for: its secret, or why not.
struct GroupKey {
  Refusal refusal = Refusal::kNone;
  std::string secret;  // read only with kNone; an empty one is a secret that everybody knows
};

using GroupLookup = std::function<GroupKey(const Hello&)>;

// The last word about a proven hello, before the verdict goes out; kNone accepts.
using Admission = std::function<Refusal(const Hello&)>;

// Collects one message of fixed size at a time, in a fixed buffer: a stranger cannot make it grow.
class HandshakeInbox {
 public:
  size_t wanted() const noexcept { return target_ - held_; }
  void expect(size_t total) noexcept { target_ = total; }
  void clear() noexcept { held_ = target_ = 0; }
  void add(std::span<const std::byte> bytes) noexcept;
  std::span<const std::byte> bytes() const noexcept { return {buffer_.data(), held_}; }

 private:
  std::array<std::byte, kMaxHandshakeMessage> buffer_{};
  size_t held_ = 0;
  size_t target_ = 0;
};

// The side that connected. One thread at a time.
class DialerHandshake {
 public:
  DialerHandshake(const Hello& hello, std::string secret)
      : hello_(hello), secret_(std::move(secret)) {}

  // Makes the HELLO; once, before all else. Fails without random bytes or with a senseless hello.
  Status start();

  // How many bytes to read next at the most; 0 once done() or failed.
  size_t bytesWanted() const noexcept { return inbox_.wanted(); }

  // At most bytesWanted() bytes. kProtocol: the peer is no ringcomm of this version. kRefused: it
  // turned this side down (refusal() says why), or could not prove that it knows the secret.
  Status feed(std::span<const std::byte> bytes);

  // Bytes to send, each given once; possibly none.
  std::string takeOutput() { return std::exchange(output_, {}); }

  bool done() const noexcept { return state_ == State::kDone; }

  // Which reason the peer gave, kNone if none. A reason before the peer's proof is hearsay: anybody
  // in between can say it, so it decides about trying again, and nothing else.
  Refusal refusal() const noexcept { return refusal_; }

 private:
  enum class State : uint8_t { kNew, kAwaitChallenge, kAwaitVerdict, kDone, kFailed };

  Status onPrologue();
  Status onChallenge();
  Status onVerdict();
  Status fail(Code code, const std::string& message);

  Hello hello_;
  std::string secret_;
  std::string transcript_;  // HELLO, then the acceptor's nonce with its prologue
  std::string output_;
  HandshakeInbox inbox_;
  State state_ = State::kNew;
  Refusal refusal_ = Refusal::kNone;
  Status failure_;
};

// The side that was connected to. Says nothing at all to what does not start with the protocol's
// magic. One thread at a time; `lookup` and `admit` are called from feed(), at most once each: the
// first with a hello that is well-formed (ranks within its world size) and otherwise unproven, the
// second with a proven one.
class AcceptorHandshake {
 public:
  // Without `admit` everybody who proves the secret is accepted.
  explicit AcceptorHandshake(GroupLookup lookup, Admission admit = {});

  size_t bytesWanted() const noexcept { return inbox_.wanted(); }

  // At most bytesWanted() bytes. kProtocol: a stranger, or another version. kRefused: turned down,
  // see refusal().
  Status feed(std::span<const std::byte> bytes);

  std::string takeOutput() { return std::exchange(output_, {}); }

  bool done() const noexcept { return state_ == State::kDone; }

  // Whether the dialer has named a group that this side has: what no stranger does by chance.
  bool challenged() const noexcept { return state_ == State::kAwaitProof || done(); }

  // Proven once done(); before, what a stranger claims.
  const Hello& hello() const noexcept { return hello_; }
  Refusal refusal() const noexcept { return refusal_; }

 private:
  enum class State : uint8_t { kAwaitHello, kAwaitProof, kDone, kFailed };

  Status onPrologue();
  Status onHello();
  Status onProof();
  Status fail(Code code, const std::string& message);
  Status refuseUnproven(Refusal refusal, Code code, const std::string& message);

  GroupLookup lookup_;
  Admission admit_;
  Hello hello_;
  std::string secret_;
  std::string transcript_;
  std::string output_;
  HandshakeInbox inbox_;
  State state_ = State::kAwaitHello;
  Refusal refusal_ = Refusal::kNone;
  Status failure_;
};

}  // namespace ringcomm
