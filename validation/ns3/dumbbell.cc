// The dumbbell of `tidegate-lab sim`, in ns-3: the oracle of `cargo xtask ns3`.
//
//   sender i --- A === bottleneck === B --- receiver i        every link as fast, data one way
//
// A tenth of the one-way delay lies before A, a tenth behind B, the rest between them. The
// bottleneck marks every packet that finds `k` or more packets waiting (RED with both thresholds
// there, a weight of one and no gentle slope is exactly that), and holds 4,000. Sources are open
// loops: 64 KiB at a time, evenly, into a backlog without an end.
//
// QTCP is ns-3's own DCTCP with one line more: a cut is deeper by the quality factor where that is
// below one. From the equations of "Configuring and Coordinating End-to-End QoS for Emerging
// Storage Infrastructure", not from our code:
//
//   Eq. 5    W' = W (1 - alpha / 2) Q     if Q < 1; as DCTCP otherwise
//   Eq. 1    Q = target / rate            of what was acknowledged per round trip, smoothed
//   Eq. 10   Q = target R / W             of what the window lets through
//
// The paper has Q both ways; a flow has no more than the lesser rate, so the larger Q is taken.
//
// Prints one JSON object; `parts` has goodput and mean queue of each 10 ms that count, from which
// follows how sure the means are. Build: see `xtask/src/ns3.rs`.

#include <algorithm>
#include <ctime>
#include <deque>
#include <iostream>
#include <numeric>
#include <vector>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/tcp-dctcp.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

/// DCTCP whose cuts heed a target rate.
class Qtcp : public TcpDctcp {
public:
  static TypeId GetTypeId() {
    static TypeId id = TypeId("ns3::Qtcp").SetParent<TcpDctcp>().AddConstructor<Qtcp>();
    return id;
  }
  /// `target`: payload bytes per second; `gamma`: the weight of what was measured before.
  void Aim(double target, double gamma) {
    m_target = target;
    m_gamma = gamma;
  }
  Ptr<TcpCongestionOps> Fork() override { return CopyObject<Qtcp>(this); }
  std::string GetName() const override { return "Qtcp"; }
  uint32_t GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t inFlight) override {
    const double cut = TcpDctcp::GetSsThresh(tcb, inFlight);
    const double least = 2.0 * tcb->m_segmentSize;
    // Eq. 10, with the window as it is before the cut and the last round trip.
    const double foreseen = m_target * m_roundTrip.GetSeconds() / tcb->m_cWnd;
    const double quality = std::max(m_quality, foreseen);
    return std::max(least, quality < 1 ? cut * quality : cut); // Eq. 5
  }
  /// The socket sends a packet. ns-3 finds round trips by TCP's time stamps, which count
  /// milliseconds, so that each of ours would be 1 us; hence a clock of its own.
  void Sent(Ptr<const Packet> packet, const TcpHeader &header, Ptr<const TcpSocketBase>) {
    const SequenceNumber32 end = header.GetSequenceNumber() + SequenceNumber32(packet->GetSize());
    if (packet->GetSize() > 0 && (m_sent.empty() || m_sent.back().first < end)) {
      m_sent.emplace_back(end, Simulator::Now());
    }
  }
  void PktsAcked(Ptr<TcpSocketState> tcb, uint32_t segments, const Time &rtt) override {
    TcpDctcp::PktsAcked(tcb, segments, rtt);
    const Time now = Simulator::Now();
    while (!m_sent.empty() && m_sent.front().first <= tcb->m_lastAckedSeq) {
      m_roundTrip = now - m_sent.front().second;
      m_sent.pop_front();
    }
    m_acked += double(segments) * tcb->m_segmentSize;
    if (tcb->m_lastAckedSeq < m_end) {
      return;
    }
    if (m_began > Seconds(0)) {
      const double rate = m_acked / (now - m_began).GetSeconds();
      m_rate = m_rate > 0 ? (1 - m_gamma) * rate + m_gamma * m_rate : rate;
      m_quality = m_target > 0 ? m_target / m_rate : 1; // Eq. 1
    }
    m_began = now;
    m_acked = 0;
    m_end = tcb->m_nextTxSequence;
  }

private:
  double m_target = 0, m_gamma = 0.5, m_rate = 0, m_quality = 1, m_acked = 0;
  Time m_began = Seconds(0), m_roundTrip = Seconds(0);
  SequenceNumber32 m_end{0};
  /// Where each packet under way ends, and when it left.
  std::deque<std::pair<SequenceNumber32, Time>> m_sent;
};

NS_OBJECT_ENSURE_REGISTERED(Qtcp);

/// Pushes 64 KiB after 64 KiB into a socket, whatever becomes of those before.
class Source {
public:
  Source(Ptr<Socket> socket, double gbps) : m_socket(socket) {
    m_every = Seconds(double(CHUNK) * 8 / (gbps * 1e9));
    m_socket->SetSendCallback(MakeCallback(&Source::Room, this));
  }
  void Start(Address to) {
    m_socket->Bind();
    m_socket->Connect(to);
    Offer();
  }

private:
  static constexpr uint32_t CHUNK = 65536;
  void Offer() {
    m_backlog += CHUNK;
    Push();
    Simulator::Schedule(m_every, &Source::Offer, this);
  }
  void Room(Ptr<Socket>, uint32_t) { Push(); }
  void Push() {
    while (m_backlog > 0) {
      const uint64_t room = std::min<uint64_t>(m_socket->GetTxAvailable(), CHUNK);
      const uint64_t bytes = std::min(m_backlog, room);
      if (bytes == 0 || m_socket->Send(Create<Packet>(bytes)) <= 0) {
        return;
      }
      m_backlog -= bytes;
    }
  }
  Ptr<Socket> m_socket;
  Time m_every;
  uint64_t m_backlog = 0;
};

namespace {
const Time PART = MilliSeconds(10);
std::vector<uint64_t> received(3, 0);
std::vector<uint32_t> queue;
/// Both counts at the end of each part.
std::vector<std::pair<std::vector<uint64_t>, size_t>> parts;
uint64_t drops = 0;
bool counting = false;

void Received(int flow, Ptr<const Packet> packet, const Address &) {
  if (counting) {
    received[flow] += packet->GetSize();
  }
}
void Look(Ptr<QueueDisc> disc, Time every) {
  if (counting) {
    queue.push_back(disc->GetNPackets());
  }
  Simulator::Schedule(every, &Look, disc, every);
}
void Part() {
  counting = true;
  parts.emplace_back(received, queue.size());
  Simulator::Schedule(PART, &Part);
}
/// The parts as rows: what each flow got in Gbit/s, and the mean queue.
void PrintParts() {
  for (size_t part = 1; part < parts.size(); ++part) {
    const auto &[before, from] = parts[part - 1];
    const auto &[after, to] = parts[part];
    std::cout << (part > 1 ? "],[" : "[");
    for (int i = 0; i < 3; ++i) {
      std::cout << (after[i] - before[i]) * 8 / PART.GetSeconds() / 1e9 << ",";
    }
    std::cout << std::accumulate(&queue[from], &queue[to], 0.0) / (to - from);
  }
  std::cout << (parts.size() > 1 ? "]" : "");
}
} // namespace

int main(int argc, char **argv) {
  double rtt = 25, milliseconds = 50, skip = 10, gbps = 100, gamma = 0.5;
  uint32_t k = 140;
  bool qtcp = false, spread = true;
  CommandLine line;
  line.AddValue("rtt", "round-trip time without queues, in microseconds", rtt);
  line.AddValue("ms", "simulated time, in milliseconds", milliseconds);
  line.AddValue("skip", "how much of it does not count, in milliseconds", skip);
  line.AddValue("gbps", "rate of every link", gbps);
  line.AddValue("k", "packets from which on packets are marked", k);
  line.AddValue("gamma", "QTCP: weight of what was measured before", gamma);
  line.AddValue("qtcp", "QTCP instead of DCTCP", qtcp);
  line.AddValue("spread", "whether a cut is spread over a round trip (PRR)", spread);
  line.Parse(argc, argv);

  Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpDctcp::GetTypeId()));
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(8 << 20));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(8 << 20));
  const std::string recovery = spread ? "ns3::TcpPrrRecovery" : "ns3::TcpClassicRecovery";
  Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                     TypeIdValue(TypeId::LookupByName(recovery)));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(10)));
  Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));

  const std::vector<double> offered = {0.9 * gbps, 0.6 * gbps, 0.3 * gbps};
  const double payload = gbps * 1e9 / 8 * 1448 / 1502; // bytes per second of the bottleneck
  const std::vector<double> share = {3.0 / 6, 2.0 / 6, 1.0 / 6};
  NodeContainer senders(3), receivers(3), switches(2);
  InternetStackHelper stack;
  stack.InstallAll();

  PointToPointHelper link;
  const std::string rate = std::to_string(uint64_t(gbps * 1e9)) + "bps";
  link.SetDeviceAttribute("DataRate", StringValue(rate));
  const double oneWay = rtt / 2;
  Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
  std::vector<Ipv4Address> to;
  const auto join = [&](Ptr<Node> left, Ptr<Node> right, double part) {
    link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(int64_t(oneWay * part * 1000))));
    return link.Install(left, right);
  };
  const auto number = [&](const NetDeviceContainer &devices) {
    const auto given = addresses.Assign(devices);
    addresses.NewNetwork();
    return given;
  };
  TrafficControlHelper fifo;
  fifo.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", QueueSizeValue(QueueSize("100000p")));
  for (int i = 0; i < 3; ++i) {
    const auto devices = join(senders.Get(i), switches.Get(0), 0.1);
    fifo.Install(devices);
    number(devices);
  }
  link.SetQueue("ns3::DropTailQueue", "MaxSize", QueueSizeValue(QueueSize("1p")));
  const auto middle = join(switches.Get(0), switches.Get(1), 0.8);
  TrafficControlHelper red;
  red.SetRootQueueDisc("ns3::RedQueueDisc", "UseEcn", BooleanValue(true), "UseHardDrop",
                       BooleanValue(false), "Gentle", BooleanValue(false), "QW", DoubleValue(1),
                       "MinTh", DoubleValue(k), "MaxTh", DoubleValue(k), "MaxSize",
                       QueueSizeValue(QueueSize("4000p")), "MeanPktSize", UintegerValue(1502),
                       "LinkBandwidth", StringValue(rate));
  const Ptr<QueueDisc> bottleneck = red.Install(middle.Get(0)).Get(0);
  number(middle);
  link.SetQueue("ns3::DropTailQueue", "MaxSize", QueueSizeValue(QueueSize("100p")));
  for (int i = 0; i < 3; ++i) {
    const auto devices = join(switches.Get(1), receivers.Get(i), 0.1);
    fifo.Install(devices);
    to.push_back(number(devices).GetAddress(1));
  }
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();

  std::vector<Source> sources;
  sources.reserve(3);
  for (int i = 0; i < 3; ++i) {
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    sink.Install(receivers.Get(i)).Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, i));
    Ptr<Socket> socket = Socket::CreateSocket(senders.Get(i), TcpSocketFactory::GetTypeId());
    if (qtcp) {
      Ptr<Qtcp> law = CreateObject<Qtcp>();
      law->Aim(payload * share[i], gamma);
      DynamicCast<TcpSocketBase>(socket)->SetCongestionControlAlgorithm(law);
      socket->TraceConnectWithoutContext("Tx", MakeCallback(&Qtcp::Sent, law));
    }
    sources.emplace_back(socket, offered[i]);
    Simulator::Schedule(MicroSeconds(1), &Source::Start, &sources[i], Address(InetSocketAddress(to[i], 5000)));
  }
  bottleneck->TraceConnectWithoutContext(
      "Drop", Callback<void, Ptr<const QueueDiscItem>>([](Ptr<const QueueDiscItem>) { ++drops; }));
  Simulator::Schedule(Seconds(skip / 1e3), &Part);
  Simulator::Schedule(MicroSeconds(1), &Look, bottleneck, MicroSeconds(1));

  const std::clock_t start = std::clock();
  // Not before the last part has ended.
  Simulator::Stop(Seconds(milliseconds / 1e3) + NanoSeconds(1));
  Simulator::Run();
  const double cpu = double(std::clock() - start) / CLOCKS_PER_SEC;

  const double counted = (milliseconds - skip) / 1e3;
  const double sum = std::accumulate(queue.begin(), queue.end(), 0.0);
  std::cout << "{\"parts\":[";
  PrintParts();
  std::sort(queue.begin(), queue.end());
  std::cout << "],\"goodput_gbps\":[";
  for (int i = 0; i < 3; ++i) {
    std::cout << (i ? "," : "") << received[i] * 8 / counted / 1e9;
  }
  std::cout << "],\"queue_mean\":" << sum / queue.size()
            << ",\"queue_p99\":" << queue[queue.size() * 99 / 100]
            << ",\"queue_max\":" << queue.back() << ",\"drops\":" << drops
            << ",\"events\":" << Simulator::GetEventCount() << ",\"cpu_seconds\":" << cpu << "}\n";
  Simulator::Destroy();
}
