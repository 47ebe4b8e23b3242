using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl
{
    /// <summary>
    /// The conversation without a socket, over any number of connections and sessions: what to say when, what is
    /// believed, what is in force. Not thread-safe: Link holds a lock around every use.
    /// </summary>
    internal sealed partial class Talk
    {
        private const long HelloAgainNs = 1000000000L;

        // Before a hello that was refused: doubled up to this, from the beginning again after a welcome.
        private const long LongestRefusedNs = 4000000000L;
        private const long GreetingSilenceNs = 10000000000L;
        private const long ClockPingNs = 10000000000L;
        private const int DeadHeartbeats = 3;
        // Of heartbeats: with a shorter one a server would be dead at once, with a longer one never.
        private const double LeastBeatMs = 50, LongestBeatMs = 10000;
        private const long LeastPeriodNs = 100000; // the protocol's fastest rate

        // What the server takes at most, so that one that refuses each hello is not flooded with them.
        private const long BetweenHellosNs = 200000000L;

        // After this a connection with no room is tried again.
        private const long RoomAgainNs = 20000000L;
        private const int QueueLength = 256;

        private readonly Random _random = new Random();
        private readonly Func<long> _clock;
        private readonly Dictionary<long, long> _stamps = new Dictionary<long, long>();
        private readonly Queue<long> _stamped = new Queue<long>();
        private List<RtMap> _outbox = new List<RtMap>();
        private string _token = "----------------";
        private bool _known; // whether _token is a session's
        private string _instruction; // the newest; the hello's own stays as it was while that hello is repeated
        private string _told; // the one in force, as the server told it last
        private string _greeting;
        private long _refusedNs = HelloAgainNs;
        private long _helloNs, _saidHelloNs; // when the next hello is due, and the last one was
        private bool _greeted; // whether this connection's first hello was said
        private long _firstHelloNs; // when; what refuses an earlier one says nothing of this one
        private long _releaseNs = -1; // of any of the session's ticks, on the server's clock
        private long _worlds; // resets so far
        private long _roomNs; // before this nothing more is said: there was no room
        private long _saidNs, _heardNs;
        private long _ping, _pingedNs = -ClockPingNs;
        private long _seq;

        public Talk(RtOptions options, Func<long> clock = null)
        {
            options.Check(options.Instruction);
            Options = options;
            _clock = clock ?? (() => MonotonicClock.NowNs);
            Rule = new InForce(0, options.SafeCalls) { OwnTtlMs = options.TtlMs ?? 0 };
            Offset = new ClockOffset();
            Phase = new PhaseLock();
            _instruction = _greeting = RtOptions.Blank(options.Instruction);
            _saidNs = _heardNs = _clock();
        }

        public RtOptions Options { get; private set; }
        public InForce Rule { get; private set; }
        public ClockOffset Offset { get; private set; }
        public PhaseLock Phase { get; private set; }
        public RtWelcome Welcome { get; private set; }

        /// <summary>Welcomed on the present connection.</summary>
        public bool Open { get; private set; }

        /// <summary>Why it ended; null while it has not. Nothing is said any more.</summary>
        public string Ended { get; private set; }

        public string LastError { get; private set; }

        /// <summary>Why the present connection brought no welcome yet, where the server has told.</summary>
        public string Refusal { get; private set; }

        /// <summary>Why this connection is to be closed, and another one made; null where it is not.</summary>
        public string Leaves { get; private set; }

        /// <summary>The next connection may go to another server.</summary>
        public bool Several;

        /// <summary>Where the newest connection goes, and where the session is.</summary>
        public string Address, SessionAddress;

        /// <summary>The server said to connect again without a pause.</summary>
        public bool AtOnce;

        public long Epoch { get; private set; }
        public RtCounts Counts;

        // What the user says.

        public long Observe(RtMap content, long stampNs)
        {
            _seq++;
            content["type"] = "observe";
            content["session"] = _token;
            content["seq"] = _seq;
            content["epoch"] = Epoch;
            content["t_ns"] = stampNs;
            if (Options.Pacing != "client" || _outbox.Count >= QueueLength)
            {
                int waiting = _outbox.FindIndex(IsObserve);
                if (waiting >= 0)
                {
                    _outbox.RemoveAt(waiting);
                    Counts.Superseded++;
                }
            }
            Counts.Observed++;
            Stamp(_seq, stampNs);
            if (Open) Phase.Observed(_seq, PeriodNs, _clock());
            _outbox.Add(content);
            return _seq;
        }

        public void Instruct(string instruction)
        {
            _instruction = instruction;
            if (_known) Say(new RtMap { { "type", "instruct" }, { "session", _token }, { "instruction", instruction } });
        }

        public long Reset(RtMap ended)
        {
            Epoch++;
            _worlds++;
            _outbox.RemoveAll(IsObserve);
            // Those that there is no room for are made up for when the session is resumed.
            if (_known) Say(ResetTo(Epoch).With("ended", ended));
            Rule.Reset(Epoch);
            Pending = null;
            return Epoch;
        }

        /// <summary>Says what became of an act, where it is still this session's and epoch's.</summary>
        public void Acknowledge(RtAct act, string outcome, string result, string error)
        {
            if (!act.Acknowledge || !Options.Acknowledge || act.Token != _token || act.Epoch != Epoch) return;
            Say(new RtMap
            {
                { "type", "executed" }, { "session", _token }, { "tick", act.Tick }, { "epoch", act.Epoch },
                { "outcome", outcome }, { "t_ns", _clock() },
            }.With("result", Cut(result)).With("error", Cut(error)));
        }

        /// <summary>
        /// An act could not be carried out. Where its call is still in force, safe is from now on: what was done before
        /// would else go on for as long as this call.
        /// </summary>
        public void GiveUp(RtAct act, string cause)
        {
            if (act.Kind == RtForce.Call && act.Calls[0] == Rule.Call) Begin(Rule.ServerLeft(), null, cause);
        }

        /// <summary>
        /// Safe calls failed: they are tried again, unless something else began meanwhile, or the world was set back.
        /// </summary>
        public void Again(RtAct act, IList<RtCall> failed)
        {
            if (Pending != null || act.World != _worlds) return;
            act.Calls = failed;
            act.Acknowledge = false;
            act.Attempt++;
            Pending = act;
        }

        /// <summary>What is in force, as the main thread has carried it out.</summary>
        public RtForce Force
        {
            get { return Pending != null && Pending.Attempt > 1 ? RtForce.Failing : Rule.Kind; }
        }

        /// <summary>The next instant that lies so long before a tick's release; null where ticks or clock are not known.</summary>
        public long? NextObservationNs(long leadNs, long nowNs)
        {
            Offset.Look(nowNs);
            if (!Open || !Offset.Known || _releaseNs < 0) return null;
            long periodNs = PeriodNs;
            long sinceNs = (nowNs - (_releaseNs - Offset.OffsetNs - leadNs)) % periodNs;
            return nowNs + periodNs - (sinceNs < 0 ? sinceNs + periodNs : sinceNs);
        }

        /// <summary>
        /// When to look next, so that it arrives just in time for a tick; null where that is not known. Newer each time after
        /// an observation.
        /// </summary>
        public long? NextLookNs(long nowNs)
        {
            return !Open || Options.Pacing == "client" || _releaseNs < 0 ? null : Phase.Next(_releaseNs, PeriodNs, Offset, nowNs);
        }

        // What the connection says.

        /// <summary>A connection is there: greet.</summary>
        public void Connected(long nowNs)
        {
            _helloNs = 0;
            _heardNs = nowNs;
            _greeted = false;
            Refusal = Leaves = null;
            AtOnce = false;
            _roomNs = 0;
        }

        /// <summary>The connection is gone, or the server silent. What is in force runs to its own end.</summary>
        public void Lost()
        {
            if (Open)
            {
                Counts.Reconnects++;
                Begin(Rule.ServerLost(), null, "server_lost");
            }
            Open = _greeted = false;
            // An observation as old as the gap helps nobody.
            _outbox.RemoveAll(IsOfItsTime);
        }

        /// <summary>The next server does not know the session.</summary>
        public void Forget()
        {
            _known = false;
        }

        /// <summary>The next connection goes to another server, maybe of another machine, whose clock is another one.</summary>
        public void Elsewhere()
        {
            Offset = new ClockOffset();
            _pingedNs = -ClockPingNs;
            _releaseNs = -1;
            Phase = new PhaseLock();
        }

        /// <summary>What must be said now.</summary>
        public List<RtMap> Due(long nowNs)
        {
            var due = new List<RtMap>();
            if (Ended != null) return due;
            if (!Open)
            {
                if (nowNs < _helloNs) return due;
                _helloNs = nowNs + HelloAgainNs;
                _saidHelloNs = nowNs;
                if (!_greeted)
                {
                    _greeting = _instruction;
                    _firstHelloNs = nowNs;
                }
                due.Add(Options.Hello(nowNs, _known ? _token : null, _greeting));
                // A welcome may take a while; whether anybody is there at all, a ping tells.
                if (_greeted) due.Add(NextPing(nowNs));
                _greeted = true;
                return due;
            }
            if (nowNs < _roomNs) return due;
            List<RtMap> said = _outbox;
            _outbox = due;
            // The second kind is for the clocks: who observes all the time is never silent.
            bool silent = said.Count == 0 && nowNs - _saidNs >= BeatNs;
            if (silent || nowNs - _pingedNs >= ClockPingNs) said.Add(NextPing(nowNs));
            return said;
        }

        public void Said(long nowNs)
        {
            _saidNs = nowNs;
        }

        /// <summary>What was due could not be sent, from this message on: no connection yet, or it is full.</summary>
        public void Unsaid(List<RtMap> rest, long nowNs)
        {
            if (Open)
            {
                // An observation is old by then. The rest is not said twice: without its reset, say, the server would
                // stay in an episode that is over.
                rest.RemoveAll(IsOfItsTime);
                _outbox.InsertRange(0, rest);
                _roomNs = nowNs + RoomAgainNs;
                return;
            }
            _helloNs = nowNs + RoomAgainNs;
            _greeted = false;
        }

        /// <summary>Whether the server must be taken for dead.</summary>
        public bool Silent(long nowNs)
        {
            return nowNs - _heardNs > (Open ? DeadHeartbeats * BeatNs : GreetingSilenceNs);
        }

        /// <summary>When something becomes due.</summary>
        public long WakeNs()
        {
            if (Ended != null) return long.MaxValue;
            long sayNs = Math.Max(_outbox.Count > 0 ? 0 : _saidNs + BeatNs, _roomNs);
            long wakeNs = Open ? Math.Min(sayNs, _heardNs + DeadHeartbeats * BeatNs + 1) : _helloNs;
            return Rule.ExpiresNs == InForce.Never ? wakeNs : Math.Min(wakeNs, Rule.ExpiresNs + 1);
        }

        /// <summary>Ends what is in force when its time has come.</summary>
        public void Look(long nowNs)
        {
            RtStep step = Rule.Look(nowNs);
            if (step.Act != RtForce.None) Counts.Expired++;
            Begin(step, null, "expired");
        }

        /// <summary>No more is said; safe is in force from now on.</summary>
        public void End(string why)
        {
            if (Ended != null) return;
            Ended = why;
            Open = false;
            _outbox.Clear();
            Begin(Rule.ServerLeft(), null, "session_ended");
        }

        public RtMap Bye(string reason)
        {
            return new RtMap { { "type", "bye" }, { "session", _token }, { "reason", reason } };
        }

        private long PeriodNs
        {
            get { return Math.Max(LeastPeriodNs, (long)(Welcome.PeriodMs * 1e6)); }
        }

        private long BeatNs
        {
            get { return Welcome == null ? 1000000000L : (long)(Math.Min(Math.Max(Welcome.HeartbeatMs, LeastBeatMs), LongestBeatMs) * 1e6); }
        }

        private RtMap NextPing(long nowNs)
        {
            _pingedNs = nowNs;
            return new RtMap { { "type", "ping" }, { "id", ++_ping }, { "t_ns", nowNs } };
        }

        private RtMap ResetTo(long epoch)
        {
            return new RtMap { { "type", "reset" }, { "session", _token }, { "epoch", epoch } };
        }

        private void Say(RtMap message)
        {
            if (_outbox.Count < 4 * QueueLength) _outbox.Add(message);
        }

        private void Stamp(long seq, long stampNs)
        {
            _stamps[seq] = stampNs;
            _stamped.Enqueue(seq);
            if (_stamped.Count > 4 * QueueLength) _stamps.Remove(_stamped.Dequeue());
        }

        private static bool IsObserve(RtMap message)
        {
            return message.Text("type") == "observe";
        }

        private static bool IsOfItsTime(RtMap message)
        {
            return IsObserve(message) || message.Text("type") == "ping" || message.Text("type") == "pong";
        }

        // Characters beyond the limit help nobody; a quarter of it holds them in any encoding.
        private static string Cut(string text)
        {
            const int most = RtLimits.MaxStringBytes / 4;
            if (text == null) return null;
            if (text.Length > most) text = text.Substring(0, most);
            // A tool may return anything: what is no Unicode becomes U+FFFD, else none of it could be told.
            return Encoding.UTF8.GetString(Encoding.UTF8.GetBytes(text));
        }
    }
}
