#include "engine/group.h"
#include "net/wire.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ringcomm {

namespace {

constexpr char kSettingsKey[] = "settings";
constexpr char kConfiguredSecret[] = "configured secret, proof ";
constexpr char kAgreedSecret[] = "agreed secret ";
constexpr char kCannotJoin[] = "cannot join: ";

// Slices end between elements, whatever their type.
constexpr int64_t kSliceUnit = 16;

std::string hexOf(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

Result<std::string> randomHex() {
  std::array<std::byte, 32> bytes{};
  RC_RETURN_IF_ERROR(randomBytes(bytes));
  return hexOf(bytes);
}

// Lets ranks see that they have the same secret, or not, without showing it. As strong as the
// handshake's own proof: who can read the store can guess a weak secret offline.
std::string proofOf(const std::string& secret, const std::string& group) {
  return hexOf(hmacSha256(asBytes(secret), asBytes("ringcomm settings of " + group)));
}

// Keeps the connections of groups apart that follow each other under one name.
uint32_t generationOf(const std::string& meeting) {
  return loadLittle<uint32_t>(groupIdOf(meeting).data());
}

}  // namespace

Result<Tuning> tuningOf(const Options& options) {
  Tuning tuning;
  tuning.directAllReduceBytes = static_cast<uint64_t>(options.directBytes);
  tuning.scatterGatherAllReduceBytes = static_cast<uint64_t>(options.scatterGatherBytes);
  RC_RETURN_IF_ERROR(forceAlgorithms(options.algorithms, tuning));
  return tuning;
}

// How the ranks of a group meet, step by step, all on the caller's thread:
//  1. rank 0 publishes the settings: a name for this meeting, the group's options, and the secret
//     if none is configured. When all have come it takes them back, so that a later group of the
//     same name does not take them for its own;
//  2. every rank registers the group with its engine, and only then publishes its addresses, so
//     that whoever knows them is let in;
//  3. every rank collects everybody's addresses.
// No connection is made here: that happens when an operation first needs one.
class Joiner {
 public:
  Joiner(std::shared_ptr<Group> group, Rendezvous& rendezvous, TimePoint deadline)
      : group_(std::move(group)),
        spec_(group_->spec_),
        rendezvous_(rendezvous),
        deadline_(deadline) {}

  Status run() {
    Status prepared = prepare();
    if (!prepared.ok()) {
      // Others learn at once why this rank will not come. If the store fails, they time out.
      (void)rendezvous_.set(addressKey(spec_.rank), kCannotJoin + prepared.message());
      return prepared;
    }
    Status met = collectAddresses();
    if (spec_.rank == 0) {
      (void)rendezvous_.remove(kSettingsKey);  // whoever came has read them
    }
    return met;
  }

 private:
  std::string addressKey(int rank) const {
    return "address/" + meeting_ + "/" + std::to_string(rank);
  }

  Status prepare() {
    RC_RETURN_IF_ERROR(spec_.rank == 0 ? publishSettings() : adoptSettings());
    spec_.options.sliceBytes -= spec_.options.sliceBytes % kSliceUnit;
    Result<Tuning> tuning = tuningOf(spec_.options);
    RC_RETURN_IF_ERROR(tuning.status());
    group_->tuning_ = *tuning;
    group_->prepare(secret_, generationOf(meeting_));
    group_->engine_.addGroup(group_->id_, group_);
    Result<Candidates> mine = group_->engine_.candidates(spec_.routeTo);
    RC_RETURN_IF_ERROR(mine.status());
    return rendezvous_.set(addressKey(spec_.rank), encodeCandidates(*mine));
  }

  Status publishSettings() {
    Result<std::string> meeting = randomHex();
    RC_RETURN_IF_ERROR(meeting.status());
    meeting_ = *meeting;
    secret_ = spec_.options.secret;
    std::string line = kConfiguredSecret + proofOf(secret_, spec_.name);
    if (secret_.empty()) {
      Result<std::string> made = randomHex();
      RC_RETURN_IF_ERROR(made.status());
      secret_ = *made;
      line = kAgreedSecret + secret_;
    }
    return rendezvous_.set(kSettingsKey,
                           meeting_ + "\n" + line + "\n" + encodeGroupOptions(spec_.options));
  }

  Status adoptSettings() {
    Result<std::string> settings = rendezvous_.get(kSettingsKey, deadline_);
    if (!settings.ok()) {
      return settings.status().code() == Code::kTimeout ? missing({0}) : settings.status();
    }
    const size_t meetingEnd = settings->find('\n');
    const size_t secretEnd =
        meetingEnd == std::string::npos ? meetingEnd : settings->find('\n', meetingEnd + 1);
    if (secretEnd == std::string::npos) {
      return {Code::kProtocol, "rank 0 published settings that make no sense"};
    }
    meeting_ = settings->substr(0, meetingEnd);
    RC_RETURN_IF_ERROR(adoptSecret(settings->substr(meetingEnd + 1, secretEnd - meetingEnd - 1)));
    return adoptGroupOptions(spec_.options, settings->substr(secretEnd + 1));
  }

  Status adoptSecret(const std::string& line) {
    secret_ = spec_.options.secret;
    const bool agreed = line.starts_with(kAgreedSecret);
    const std::string same =
        ": set the option secret (RINGCOMM_SECRET) to the same value on all ranks, or on none";
    if (agreed && secret_.empty()) {
      secret_ = line.substr(sizeof kAgreedSecret - 1);
      return {};
    }
    if (agreed) {
      return {Code::kInvalidArgument,
              "this rank has a secret configured and rank 0 has none" + same};
    }
    if (secret_.empty()) {
      return {Code::kInvalidArgument,
              "rank 0 has a secret configured and this rank has none" + same};
    }
    if (line != kConfiguredSecret + proofOf(secret_, spec_.name)) {
      return {Code::kRefused,
              "the secrets of rank 0 and of rank " + std::to_string(spec_.rank) + " differ" + same};
    }
    return {};
  }

  Status collectAddresses() {
    std::vector<Candidates> everybody;
    std::vector<int> absent;
    for (int rank = 0; rank < spec_.world; ++rank) {
      // After the deadline the rest are only looked up, so that all that are missing are named.
      Result<std::string> encoded = rendezvous_.get(addressKey(rank), deadline_);
      if (!encoded.ok()) {
        if (encoded.status().code() != Code::kTimeout) {
          return encoded.status();
        }
        absent.push_back(rank);
        continue;
      }
      if (encoded->starts_with(kCannotJoin)) {
        return Status(Code::kRefused, "rank " + std::to_string(rank) + " " + *encoded, rank);
      }
      Result<Candidates> candidates = decodeCandidates(*encoded);
      if (!candidates.ok()) {
        return candidates.status().prefixed("rank " + std::to_string(rank) + ": ");
      }
      everybody.push_back(std::move(*candidates));
    }
    if (!absent.empty()) {
      return missing(absent);
    }
    group_->introduce(std::move(everybody));
    return {};
  }

  Status missing(const std::vector<int>& ranks) const {
    std::string list;
    for (const int rank : ranks) {
      list += (list.empty() ? "" : ", ") + std::to_string(rank);
    }
    return {Code::kTimeout,
            "Timed out waiting for " + std::string(ranks.size() == 1 ? "rank " : "ranks ") + list +
                " of " + std::to_string(spec_.world) + " to join the process group '" + spec_.name +
                "' (this is rank " + std::to_string(spec_.rank) + ")",
            ranks.front()};
  }

  std::shared_ptr<Group> group_;
  GroupSpec& spec_;
  Rendezvous& rendezvous_;
  const TimePoint deadline_;
  std::string meeting_;
  std::string secret_;
};

Result<std::shared_ptr<Group>> Group::join(Engine& engine, const GroupSpec& spec,
                                           Rendezvous& rendezvous, TimePoint deadline) {
  std::shared_ptr<Group> group(new Group(engine, spec));
  const Status joined = Joiner(group, rendezvous, deadline).run();
  if (!joined.ok()) {
    if (group->peers_ != nullptr) {
      group->close();
    }
    return joined;
  }
  return group;
}

}  // namespace ringcomm
