#include "engine/peers.h"

#include "dialing.h"
#include "net/lane.h"
#include "net/listener.h"
#include "net/socket.h"

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kLanes = 2;
constexpr auto kSlow = 400ms;

// One rank: its listener and its peers, on a loop of its own.
class Rank final : public PeersObserver {
 public:
  Rank(int rank, int world, const std::string& secret = "secret") : world_(world) {
    Result<UniqueFd> fd = listenOnAll(0, {});
    REQUIRE(fd.ok());
    port_ = localAddress(fd->get()).port();
    Peers::Setup setup;
    setup.loop = &*loop;
    setup.observer = this;
    setup.logger = &logger_;
    setup.group = groupIdOf("test");
    setup.generation = 3;
    setup.rank = rank;
    setup.world = world;
    setup.lanes = kLanes;
    setup.secret = secret;
    setup.slow = kSlow;
    loop.run([&] {
      peers = std::make_unique<Peers>(setup);
      listener_ = std::make_unique<Listener>(*loop, std::move(*fd), SocketOptions(), logger_);
      REQUIRE(listener_
                  ->start(
                      [this](const Hello& hello) {
                        return hello.kind == ConnectionKind::kData && hello.lane == refusedLane
                                   ? GroupKey{Refusal::kUnknownGroup, {}}
                                   : peers->admit(hello);
                      },
                      [this](const Hello& hello) { return peers->admit(hello).refusal; },
                      [this](UniqueFd socket, const Hello& hello) {
                        peers->accepted(std::move(socket), hello);
                      })
                  .ok());
    });
  }
  ~Rank() {
    loop.run([&] {
      listener_.reset();
      peers.reset();
      lanes_.clear();
    });
  }

  Candidates candidates() const {
    Candidates made;
    made.host = HostId::ofThisProcess();
    Candidate candidate;
    candidate.address = Address::parseHost("127.0.0.1", port_).value();
    made.addresses.push_back(candidate);
    return made;
  }
  void introduce(const std::vector<Candidates>& all) {
    std::vector<std::string> names;
    for (int rank = 0; rank < world_; ++rank) {
      names.push_back("rank " + std::to_string(rank));
    }
    loop.run([&] { peers->introduce(all, names); });
  }
  int lanesWith(int peer) {
    return loop.run([&] { return static_cast<int>(lanes_[peer].size()); });
  }
  bool hasLane(int peer, int lane) {
    return loop.run([&] { return lanes_[peer].contains(lane); });
  }
  void connect(int peer, Duration time = 10s) {
    loop.run([&] { peers->connect(peer, Clock::now() + time); });
  }
  void connectMail(int peer) {
    loop.run([&] { peers->connectMail(peer, Clock::now() + 10s); });
  }
  Status cause() {
    return loop.run([&] { return cause_; });
  }
  bool failsWith(Code code) {
    return eventually(3s, [&] { return cause().code() == code; });
  }
  Refusal admits(Hello hello) {
    return loop.run([&] { return peers->admit(hello).refusal; });
  }

  // On the loop.
  void laneConnected(int peer, int lane, UniqueFd fd) override {
    lanes_[peer][lane] = std::move(fd);
  }
  void peersFailed(const Status& cause) override { cause_ = cause_.ok() ? cause : cause_; }
  bool hasCalled(uint64_t) const override { return false; }
  void peerLeft(int peer) override { left = peer; }
  void mailUnreachable(int, const Status& why) override { gone_ = why; }
  Status gone() {
    return loop.run([&] { return gone_; });
  }
  void heardCall(int, const ControlMessage& note) override {
    heard_ = note;
    ++calls;
  }
  ControlMessage heard() {
    return loop.run([&] { return heard_; });
  }

  std::vector<std::string> warnings() {
    std::lock_guard<std::mutex> lock(mutex_);
    return warnings_;
  }
  std::string address() const { return candidates().addresses.front().address.toString(); }

  TestLoop loop;
  std::unique_ptr<Peers> peers;
  std::atomic<int> left{-1};
  std::atomic<int> refusedLane{-1};
  std::atomic<int> calls{0};

 private:
  const int world_;
  uint16_t port_ = 0;
  const Logger logger_{LogLevel::kWarning, [this](LogLevel, const std::string& text) {
                         std::lock_guard<std::mutex> lock(mutex_);
                         warnings_.push_back(text);
                       }};
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::unique_ptr<Listener> listener_;
  std::map<int, std::map<int, UniqueFd>> lanes_;
  Status cause_;
  ControlMessage heard_;
  Status gone_;
};

struct Pair {
  Pair() { meet(); }
  void meet() {
    const std::vector<Candidates> all = {low.candidates(), high.candidates()};
    low.introduce(all);
    high.introduce(all);
  }
  void connectBoth() {
    low.connect(1);
    high.connect(0);
    CHECK(eventually(3s, [&] { return low.lanesWith(1) + high.lanesWith(0) == 2 * kLanes; }));
  }
  Rank low{0, 2};
  Rank high{1, 2};
};

Hello groupHello(int from, int to, ConnectionKind kind, uint16_t lane = 0) {
  Hello hello;
  hello.group = groupIdOf("test");
  hello.generation = 3;
  hello.fromRank = from;
  hello.toRank = to;
  hello.worldSize = 3;
  hello.kind = kind;
  hello.lane = lane;
  return hello;
}

}  // namespace

TEST_CASE("the lower rank dials all lanes, and each is handed out once") {
  Pair pair;
  pair.connectBoth();
  pair.low.connect(1);
  std::this_thread::sleep_for(20ms);
  CHECK(pair.low.lanesWith(1) == kLanes);
  CHECK(pair.high.hasLane(0, 0));
  CHECK(pair.high.hasLane(0, 1));
  CHECK_FALSE(pair.high.hasLane(0, kLanes));
  CHECK(pair.low.cause().ok());
}

TEST_CASE("the higher rank asks to be dialed for messages, also before the other knows it") {
  Rank low(0, 2);
  Rank high(1, 2);
  const std::vector<Candidates> all = {low.candidates(), high.candidates()};
  high.introduce(all);
  high.connectMail(0);
  std::this_thread::sleep_for(50ms);
  CHECK(high.lanesWith(0) == 0);
  low.introduce(all);
  CHECK(eventually(3s, [&] { return high.hasLane(0, kLanes) && low.hasLane(1, kLanes); }));
  CHECK(high.lanesWith(0) == 1);
  CHECK(high.cause().ok());
}

TEST_CASE("a rank that is waited for in vain is asked to come") {
  Pair pair;
  pair.high.connect(0);
  CHECK(eventually(3s, [&] { return pair.high.lanesWith(0) == kLanes; }));
}

TEST_CASE("who is let in: the right group, rank, world and generation, and each lane once") {
  Rank middle(1, 3);
  CHECK(middle.admits(groupHello(0, 1, ConnectionKind::kData)) == Refusal::kNone);
  CHECK(middle.admits(groupHello(0, 1, ConnectionKind::kData, kLanes)) == Refusal::kNone);
  CHECK(middle.admits(groupHello(0, 1, ConnectionKind::kData, kLanes + 1)) == Refusal::kMalformed);
  CHECK(middle.admits(groupHello(0, 1, ConnectionKind::kControl)) == Refusal::kNone);
  CHECK(middle.admits(groupHello(2, 1, ConnectionKind::kKnock)) == Refusal::kNone);
  CHECK(middle.admits(groupHello(2, 1, ConnectionKind::kData)) == Refusal::kWrongRank);
  CHECK(middle.admits(groupHello(0, 1, ConnectionKind::kKnock)) == Refusal::kWrongRank);
  CHECK(middle.admits(groupHello(0, 2, ConnectionKind::kData)) == Refusal::kWrongRank);
  Hello hello = groupHello(0, 1, ConnectionKind::kData);
  hello.worldSize = 4;
  CHECK(middle.admits(hello) == Refusal::kWrongWorld);
  hello = groupHello(0, 1, ConnectionKind::kData);
  hello.generation = 2;
  CHECK(middle.admits(hello) == Refusal::kWrongGeneration);
  Pair pair;
  pair.connectBoth();
  hello = groupHello(0, 1, ConnectionKind::kData, 1);
  hello.worldSize = 2;
  CHECK(pair.high.admits(hello) == Refusal::kDuplicate);
  pair.high.loop.run([&] { pair.high.peers->close(); });
  CHECK(pair.high.admits(hello) == Refusal::kClosing);
}

TEST_CASE("a failure is told to the peer with its words and whom it is about") {
  Pair pair;
  pair.connectBoth();
  pair.low.loop.run([&] { pair.low.peers->announce({Code::kTimeout, "too late", 1}); });
  REQUIRE(pair.high.failsWith(Code::kTimeout));
  CHECK(pair.high.cause().message() == "too late");
  CHECK(pair.high.cause().rank() == 1);
}

TEST_CASE("a peer that leaves in order is lost only to who needs it afterwards") {
  Pair pair;
  pair.connectBoth();
  pair.low.loop.run([&] { pair.low.peers->close(); });
  CHECK(eventually(3s, [&] { return pair.high.left == 0; }));
  CHECK(pair.high.cause().ok());
  pair.high.connectMail(0);
  CHECK(eventually(3s, [&] { return !pair.high.gone().ok(); }));
  CHECK(pair.high.gone().code() == Code::kPeerLost);
  CHECK(pair.high.gone().message() ==
        "rank 0 has left the group (its process group was destroyed)");
  CHECK(pair.high.cause().ok());
  pair.high.loop.run([&] { pair.high.peers->laneLost(0, kLaneEnded); });
  REQUIRE(pair.high.failsWith(Code::kPeerLost));
  CHECK(pair.high.cause().message() == pair.high.gone().message());
}

TEST_CASE("a lost lane is told, also of a peer that was suspected of something else before") {
  Pair pair;
  pair.connectBoth();
  const auto op = std::make_shared<Op>(OpDesc(), 1, Clock::now());
  pair.low.loop.run([&] {
    pair.low.peers->compare(1, op, {}, {Code::kMismatch, "perhaps", 1});
    op->completeShare({});  // so it was nothing
    pair.low.peers->laneLost(1, ECONNRESET);
  });
  REQUIRE(pair.low.failsWith(Code::kPeerLost));
  CHECK(pair.low.cause().message().find("lost the connection with rank 1") == 0);
}

TEST_CASE("a peer that leaves before all of its lanes are there is lost only to who needs them") {
  Pair pair;
  pair.high.refusedLane = 1;
  pair.low.connect(1);
  // The last attempt at lane 1 comes after some 600 ms.
  REQUIRE(eventually(3s, [&] { return pair.low.hasLane(1, 0); }));
  std::this_thread::sleep_for(100ms);
  pair.high.loop.run([&] { pair.high.peers->close(); });
  REQUIRE(eventually(3s, [&] { return pair.low.left == 1; }));
  pair.low.left = -1;
  CHECK(eventually(3s, [&] { return pair.low.left == 1; }));
  CHECK(pair.low.cause().ok());
  pair.low.loop.run([&] { pair.low.peers->laneLost(1, kLaneEnded); });
  REQUIRE(pair.low.failsWith(Code::kPeerLost));
  CHECK(pair.low.cause().message() ==
        "rank 1 has left the group (its process group was destroyed)");
}

TEST_CASE(
    "what a rank called is told to the peer; a verdict about it comes when the peer has none") {
  Pair pair;
  pair.connectBoth();
  const auto op = std::make_shared<Op>(OpDesc(), 7, Clock::now());
  ControlMessage note;
  note.kind = ControlKind::kCall;
  note.call = op->signature();
  note.gives = 12;
  // The link is there when the peer has answered the handshake, which may be after the lanes.
  CHECK(eventually(3s, [&] {
    pair.low.loop.run([&] { pair.low.peers->compare(1, op, note, {}); });
    return pair.high.calls > 0;
  }));
  CHECK(pair.high.heard() == note);
  std::this_thread::sleep_for(600ms);
  CHECK(pair.low.cause().ok());
  const TimePoint start = Clock::now();
  pair.low.loop.run([&] { pair.low.peers->compare(1, op, note, {Code::kMismatch, "else", 1}); });
  CHECK(pair.low.cause().ok());
  REQUIRE(pair.low.failsWith(Code::kMismatch));
  CHECK(Clock::now() - start < 1s);
}

TEST_CASE(
    "a peer that is not reached is warned of once, and named with its addresses in the error") {
  const BlackHole hole;
  Rank low(0, 2);
  Rank high(1, 2);
  Candidates swallowed = high.candidates();
  swallowed.addresses.front().address = hole.address;
  const std::vector<Candidates> all = {low.candidates(), swallowed};
  low.introduce(all);
  high.introduce(all);
  const std::string at = "127.0.0.1:" + std::to_string(hole.address.port());
  const TimePoint start = Clock::now();
  low.connect(1, 1500ms);
  high.connect(0, 1500ms);

  REQUIRE(eventually(3s, [&] { return !low.warnings().empty() && !high.warnings().empty(); }));
  CHECK(Clock::now() - start >= kSlow);
  CHECK(Clock::now() - start < kSlow + 500ms);
  const std::string warned = low.warnings().front();
  CHECK(warned.starts_with("still not connected with rank 1 after 0.4 s: tried " + at +
                           ": no answer. It goes on trying for up to another 1.1 s. Check that"));
  CHECK(warned.find("RINGCOMM_PORT") != std::string::npos);
  CHECK(warned.find("RINGCOMM_INTERFACES") != std::string::npos);
  const std::string waiting = "no connection from it has arrived here (rank 1, listening at " + at +
                              "), although it answers when it is called";
  CHECK(high.warnings().front().starts_with("still not connected with rank 0 after 0.4 s: " +
                                            waiting));

  const auto op = std::make_shared<Op>(OpDesc(), 7, Clock::now());
  high.loop.run([&] { high.peers->suspect(0, op, {Code::kTimeout, "Timed out", 0}); });
  CHECK(high.cause().code() == Code::kTimeout);
  CHECK(high.cause().message().starts_with("Timed out: " + waiting + ". Check that"));

  REQUIRE(low.failsWith(Code::kTimeout));
  CHECK(Clock::now() - start < 2s);
  CHECK(low.cause().message().starts_with("cannot connect to rank 1: no answer in time (" + at +
                                          ": no answer). Check that no firewall"));
  CHECK(low.warnings().size() == 1);
  CHECK(high.warnings().size() == 1);
}

TEST_CASE("a rank that neither is called nor reaches its caller says both") {
  const BlackHole hole;
  Rank high(1, 2);
  Candidates swallowed = high.candidates();
  swallowed.addresses.front().address = hole.address;
  high.introduce({swallowed, high.candidates()});
  high.connectMail(0);
  REQUIRE(eventually(3s, [&] { return !high.warnings().empty(); }));
  const std::string warned = high.warnings().front();
  CAPTURE(warned);
  CHECK(warned.find("no connection from it has arrived here (rank 1, listening at " +
                    high.address() + "), nor does it answer: tried " + hole.address.toString() +
                    ": no answer. It goes on trying for up to another 9.6 s.") !=
        std::string::npos);
}

TEST_CASE("nothing is said of a peer that was connected, or whose deadline comes first") {
  Pair pair;
  pair.connectBoth();
  const BlackHole hole;
  Rank low(0, 2);
  Candidates swallowed = low.candidates();
  swallowed.addresses.front().address = hole.address;
  low.introduce({low.candidates(), swallowed});
  low.connect(1, kSlow - 100ms);
  std::this_thread::sleep_for(kSlow + 200ms);
  CHECK(low.cause().code() == Code::kTimeout);
  CHECK(low.warnings().empty());
  CHECK(pair.low.warnings().empty());
  CHECK(pair.high.warnings().empty());
}

TEST_CASE("different secrets end in a refusal that names the peer") {
  Rank low(0, 2, "one");
  Rank high(1, 2, "two");
  const std::vector<Candidates> all = {low.candidates(), high.candidates()};
  low.introduce(all);
  high.introduce(all);
  low.connect(1);
  CHECK(eventually(3s, [&] { return !low.cause().ok(); }));
  CHECK(low.cause().message().find("rank 1") != std::string::npos);
  CHECK(low.cause().message().find("secret") != std::string::npos);
  CHECK(low.lanesWith(1) == 0);
}
