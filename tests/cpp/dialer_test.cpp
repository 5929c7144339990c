#include "net/dialer.h"

#include "dialing.h"

#include <doctest/doctest.h>

#include <thread>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

// An address where nobody listens: connects are refused at once.
Address deadAddress() {
  Result<UniqueFd> fd = listenOnAll(0, {});
  REQUIRE(fd.ok());
  return Address::parseHost("127.0.0.1", localAddress(fd->get()).port()).value();
}

// Somebody else's server: does `serve` with each connection, one at a time.
class Stranger {
 public:
  explicit Stranger(std::function<void(const UniqueFd&)> serve) : serve_(std::move(serve)) {
    Result<UniqueFd> fd = listenOnAll(0, {});
    REQUIRE(fd.ok());
    listening_ = std::move(*fd);
    address = Address::parseHost("127.0.0.1", localAddress(listening_.get()).port()).value();
    ::fcntl(listening_.get(), F_SETFL, 0);
    thread_ = std::thread([this] { work(); });
  }
  ~Stranger() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  Address address;
  std::atomic<int> visits{0};

 private:
  void work() {
    while (true) {
      UniqueFd fd(::accept(listening_.get(), nullptr, nullptr));
      if (!fd) {
        return;
      }
      ++visits;
      serve_(fd);
      held_.push_back(std::move(fd));
    }
  }

  std::function<void(const UniqueFd&)> serve_;
  UniqueFd listening_;
  std::vector<UniqueFd> held_;
  std::thread thread_;
};

std::string prologueOf(char version, char type, Refusal reason) {
  return {'R', 'N', 'G', 'C', version, '\0', type, static_cast<char>(reason)};
}

// Answers every HELLO with these bytes, and keeps the connection.
std::function<void(const UniqueFd&)> answering(const std::string& bytes) {
  return [bytes](const UniqueFd& fd) {
    char hello[92];
    (void)::recv(fd.get(), hello, sizeof hello, MSG_WAITALL);
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  };
}

constexpr char kRefusalType = 5;

}  // namespace

TEST_CASE("a dead first address costs less than the stagger") {
  TestListener listener;
  const TimePoint start = Clock::now();
  CHECK(dial({deadAddress(), listener.address()}, helloOf(0, 1)).ok());
  CHECK(secondsSince(start) < 0.2);
}

TEST_CASE("refused everywhere: lost within three seconds, naming all addresses and the peer") {
  const std::vector<Address> dead = {deadAddress(), deadAddress(), deadAddress()};
  const TimePoint start = Clock::now();
  const Result<UniqueFd> fd = dial(dead, helloOf(0, 2), 60);
  CHECK(secondsSince(start) < 3.0);
  CHECK(fd.status().code() == Code::kPeerLost);
  CHECK(fd.status().rank() == 2);
  const std::string message = fd.status().message();
  CAPTURE(message);
  CHECK(message.find("rank 2 (host b)") != std::string::npos);
  CHECK(message.find("Connection refused") != std::string::npos);
  for (const Address& address : dead) {
    CHECK(message.find(address.toString()) != std::string::npos);
  }
}

TEST_CASE("a peer that begins to listen a moment later is found") {
  const Address address = deadAddress();
  std::unique_ptr<Stranger> late;
  std::atomic<bool> answered{false};
  std::thread opener([&] {
    std::this_thread::sleep_for(100ms);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    const int yes = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(fd.get(), address.raw(), address.length) == 0 && ::listen(fd.get(), 4) == 0) {
      const UniqueFd visitor(::accept(fd.get(), nullptr, nullptr));
      answered = static_cast<bool>(visitor);
      answering(prologueOf(1, kRefusalType, Refusal::kClosing))(visitor);
    }
  });
  const Result<UniqueFd> fd = dial({address}, helloOf(0, 1));
  opener.join();
  CHECK(answered);
  CHECK(fd.status().code() == Code::kRefused);
}

TEST_CASE("whatever a stranger at the first address says, the peer at the second is reached") {
  TestListener listener;
  std::vector<std::string> answers;
  answers.emplace_back("");
  answers.emplace_back("HTTP/1.1 400 Bad Request\r\n\r\n");
  answers.push_back(prologueOf(2, 2, Refusal::kNone));
  answers.push_back(prologueOf(1, 2, Refusal::kNone).append(64, 'x'));
  for (int reason = 1; reason <= static_cast<int>(Refusal::kClosing); ++reason) {
    answers.push_back(prologueOf(1, kRefusalType, static_cast<Refusal>(reason)));
  }
  int rank = 0;
  for (const std::string& answer : answers) {
    CAPTURE(rank);
    Stranger stranger(answering(answer));  // "": takes the connection and stays silent
    const TimePoint start = Clock::now();
    const Result<UniqueFd> fd =
        dial({stranger.address, listener.address()}, helloOf(rank++, 50000));
    CHECK(fd.ok());
    CHECK(secondsSince(start) < (answer.empty() ? 2.0 : 0.5));
    CHECK(stranger.visits == 1);
  }
}

TEST_CASE("refusals that others may have caused are tried again, the peer's final ones are not") {
  struct Row {
    Refusal refusal;
    bool final;
    Code code;
  };
  const Row rows[] = {
      {Refusal::kUnknownGroup, false, Code::kPeerLost},
      {Refusal::kMalformed, false, Code::kRefused},
      {Refusal::kWrongGeneration, false, Code::kRefused},
      {Refusal::kWrongWorld, false, Code::kRefused},
      {Refusal::kWrongRank, false, Code::kRefused},
      {Refusal::kVersion, true, Code::kRefused},
      {Refusal::kWrongSecret, true, Code::kRefused},
      {Refusal::kDuplicate, true, Code::kRefused},
      {Refusal::kClosing, true, Code::kRefused},
  };
  std::vector<std::thread> threads;
  for (const Row& row : rows) {
    threads.emplace_back([&row] {
      Stranger stranger(answering(prologueOf(1, kRefusalType, row.refusal)));
      const TimePoint start = Clock::now();
      const Result<UniqueFd> fd = dial({stranger.address}, helloOf(0, 1), 60);
      CAPTURE(refusalText(row.refusal));
      CHECK(fd.status().code() == row.code);
      CHECK(fd.status().message().find(refusalText(row.refusal)) != std::string::npos);
      CHECK(stranger.visits == (row.final ? 1 : 6));
      CHECK(secondsSince(start) < 3.0);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_CASE("a group that is made while we dial is found") {
  TestListener listener;
  listener.answer = Refusal::kUnknownGroup;
  std::thread maker([&] {
    std::this_thread::sleep_for(100ms);
    listener.answer = Refusal::kNone;
  });
  CHECK(dial({listener.address()}, helloOf(0, 1)).ok());
  maker.join();
}

TEST_CASE("one that answers nothing ends the dial at its deadline, and is named") {
  Stranger stranger(answering(""));
  const TimePoint start = Clock::now();
  const Result<UniqueFd> fd = dial({stranger.address}, helloOf(0, 1), 0.5);
  CHECK(secondsSince(start) >= 0.5);
  CHECK(secondsSince(start) < 1.0);
  CHECK(fd.status().code() == Code::kTimeout);
  CHECK(fd.status().message().find("rank 1 (host b)") != std::string::npos);
}

TEST_CASE("when time is up every address is named, with what has come of it") {
  const BlackHole hole;
  const Address dead = deadAddress();
  Stranger silent(answering(""));
  Stranger other(answering("HTTP/1.1 400 Bad Request\r\n\r\n"));
  const TimePoint start = Clock::now();
  const Result<UniqueFd> fd =
      dial({hole.address, dead, other.address, silent.address}, helloOf(0, 1), 1.0);
  CHECK(secondsSince(start) >= 1.0);
  CHECK(secondsSince(start) < 1.5);
  CHECK(fd.status().code() == Code::kTimeout);
  const std::string message = fd.status().message();
  CAPTURE(message);
  CHECK(message.starts_with("cannot connect to rank 1 (host b): no answer in time (" +
                            hole.address.toString() + ": no answer; " + dead.toString() +
                            ": connect: Connection refused; " + other.address.toString() + ": "));
  CHECK(message.ends_with("; " + silent.address.toString() +
                          ": it takes the connection, but does not answer the handshake)"));
}

TEST_CASE("one that answers nothing holds the peer's next address up by the stagger alone") {
  const BlackHole hole;
  TestListener listener;
  const TimePoint start = Clock::now();
  CHECK(dial({hole.address, listener.address()}, helloOf(0, 1)).ok());
  CHECK(secondsSince(start) >= 0.2);
  CHECK(secondsSince(start) < 0.7);
}

TEST_CASE("the deadline comes before all addresses were tried") {
  const BlackHole hole;
  const Address dead = deadAddress();
  const Result<UniqueFd> fd = dial({hole.address, dead}, helloOf(0, 1), 0.1);
  CHECK(fd.status().message() == "cannot connect to rank 1 (host b): no answer in time (" +
                                     hole.address.toString() + ": no answer; " + dead.toString() +
                                     ": not tried yet)");
}

TEST_CASE("another version is named with both numbers") {
  Stranger stranger(answering(prologueOf(7, kRefusalType, Refusal::kVersion)));
  const Result<UniqueFd> fd = dial({stranger.address}, helloOf(0, 1));
  CHECK(fd.status().code() == Code::kProtocol);
  CHECK(fd.status().message().find("protocol 7, this side 1") != std::string::npos);
}

TEST_CASE("the peer under two addresses is connected once") {
  TestListener listener;
  const Address six = Address::parseHost("::1", listener.port).value();
  for (int rank = 0; rank < 20; ++rank) {
    CHECK(dial({listener.address(), six}, helloOf(rank, 50000)).ok());
  }
  CHECK(eventually(1s, [&] { return listener.acceptedCount == 20; }));
}

TEST_CASE("a dialer that is destroyed half way leaves nothing behind") {
  Stranger stranger(answering(""));
  const TestLoop loop;
  bool called = false;
  loop.run([&] {
    Dialer::Target target;
    target.addresses = {stranger.address, deadAddress()};
    target.hello = helloOf(0, 1);
    Dialer dialer(*loop, {}, std::move(target), Clock::now() + 50ms,
                  [&](Result<UniqueFd>) { called = true; });
    dialer.start();
  });
  std::this_thread::sleep_for(100ms);
  loop.run([&] { CHECK_FALSE(called); });
}
