using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>The part that hears the server.</summary>
    internal sealed partial class Talk
    {
        /// <summary>What the main thread is to carry out next; a newer act replaces an older one.</summary>
        public RtAct Pending { get; private set; }

        public RtAct TakeAct()
        {
            RtAct act = Pending;
            Pending = null;
            return act;
        }

        /// <summary>A message of the server.</summary>
        public void Hear(RtMap message, long nowNs)
        {
            _heardNs = nowNs;
            switch (message.Text("type"))
            {
                case "call":
                    HearCall(message, nowNs);
                    break;
                case "welcome":
                    HearWelcome(new RtWelcome(message));
                    break;
                case "ping":
                    Say(new RtMap
                    {
                        { "type", "pong" }, { "id", message["id"] }, { "t_ping_ns", message["t_ns"] },
                        { "t_received_ns", nowNs }, { "t_sent_ns", _clock() },
                    });
                    break;
                case "pong":
                    Offset.Add(message.Long("t_ping_ns"), message.Long("t_received_ns"), message.Long("t_sent_ns"), nowNs);
                    break;
                case "instruct":
                    if (message.Text("session") == _token) _instruction = _told = message.Text("instruction");
                    break;
                case "error":
                    HearError(message, nowNs);
                    break;
                case "bye":
                    HearBye(message, nowNs);
                    break;
                default:
                    Counts.Ignored++;
                    break;
            }
        }

        private void HearWelcome(RtWelcome welcome)
        {
            bool ofBefore = welcome.Message.Long("t_client_ns") < _firstHelloNs;
            if (Ended != null || Open || ofBefore || (welcome.Resumed && welcome.Token != _token))
            {
                Counts.Ignored++; // the answer to a hello said before, or twice
                return;
            }
            if (!welcome.Speaks(Messages.Major, Messages.Minor))
            {
                End("The server speaks another protocol. Update it, or this package.");
                return;
            }
            Open = true;
            _refusedNs = HelloAgainNs;
            Welcome = welcome;
            string before = welcome.Resumed ? _told : _greeting;
            _told = welcome.Message.Text("instruction");
            _releaseNs = welcome.Message.Long("release_ns", -1);
            IList<RtCall> safeCalls = Options.SafeCalls;
            if (safeCalls.Count == 0) safeCalls = RtCall.Safe(welcome.Message, "safe_calls", "safe_call");
            long epoch = welcome.Message.Long("epoch");
            if (Options.TtlMs == null) Rule.OwnTtlMs = welcome.TtlMs;
            if (welcome.Resumed)
            {
                Counts.Resumed++;
                Rule.SafeCalls = safeCalls;
                ResendResets(epoch);
            }
            else
            {
                Counts.Sessions++;
                // Another server, maybe of another machine: its clock is another one.
                Offset = new ClockOffset();
                Phase = new PhaseLock();
                _pingedNs = -ClockPingNs;
                _token = welcome.Token;
                SessionAddress = Address;
                _known = true;
                Epoch = epoch;
                // What waited was for the session that is gone; only its newest look at the world is as good as ever.
                List<RtMap> waiting = _outbox.FindAll(IsObserve);
                _outbox.Clear();
                foreach (RtMap observation in waiting)
                {
                    observation["session"] = _token;
                    observation["epoch"] = Epoch;
                    _outbox.Add(observation);
                }
                Begin(Rule.NewSession(epoch, safeCalls), null, "new_session");
            }
            // The greeting's, as it was understood; else what was given while greeting, or lost with the connection.
            if (_instruction != null && !welcome.Resumed && _instruction == before) _instruction = _told;
            if (_instruction == null || _instruction == before || _instruction == _told) return;
            _outbox.RemoveAll(m => m.Text("type") == "instruct");
            Instruct(_instruction);
        }

        private void ResendResets(long serverEpoch)
        {
            var at = 0;
            long first = Math.Max(serverEpoch + 1, Epoch - QueueLength);
            for (long epoch = first; epoch <= Epoch; epoch++)
            {
                long wanted = epoch;
                if (!_outbox.Exists(m => m.Text("type") == "reset" && m.Long("epoch") == wanted))
                    _outbox.Insert(at, ResetTo(epoch));
                at++;
            }
        }

        private void HearCall(RtMap message, long nowNs)
        {
            long stampNs;
            bool fresh = message.Text("status") == "fresh";
            // A stamp that is not its observation's would let the call live longer, or shorter, than it may.
            bool wrongStamp = fresh && _stamps.TryGetValue(message.Long("seq_obs", -1), out stampNs)
                && stampNs != message.Long("t_obs_ns", -1);
            if (!Open || message.Text("session") != _token || message.Long("epoch") != Epoch
                || message.Long("tick") <= Rule.LastTick || wrongStamp)
            {
                Counts.Ignored++;
                return;
            }
            if (fresh)
            {
                Counts.Fresh++;
                if (message.ContainsKey("t_obs_ns")) Counts.LatencyMs = (nowNs - message.Long("t_obs_ns")) / 1e6;
            }
            else if (message.Text("status") == "held") Counts.Held++;
            else Counts.Safe++;
            _releaseNs = message.Long("release_ns", _releaseNs);
            Phase.Heard(message, PeriodNs, nowNs);
            RtStep step = Rule.Receive(message, nowNs);
            RtAct origin = ActOf(message);
            if (step.Expired)
            {
                Counts.Expired++;
                Acknowledge(origin, "expired", null, null);
            }
            bool own = step.Acknowledge && !step.Expired;
            if (!own && step.Act == RtForce.Safe) Counts.Expired++;
            Begin(step, own ? origin : null, own ? message.Text("cause") : "expired");
        }

        private RtAct ActOf(RtMap message)
        {
            return new RtAct
            {
                Tick = message.Long("tick"), Epoch = message.Long("epoch"), Token = _token,
                SeqObs = message.Long("seq_obs", -1), StampNs = message.Long("t_obs_ns", -1),
                Confidence = message.Number("confidence", double.NaN), Acknowledge = true,
            };
        }

        private void HearError(RtMap message, long nowNs)
        {
            Counts.Errors++;
            string code = message.Text("code");
            LastError = (code + ": " + message.Text("message") + " " + message.Text("remedy", "")).Trim();
            // The answer to a hello before: this one has its own.
            long helloNs = message.Long("t_client_ns", -1);
            if (helloNs >= 0 && (Open || helloNs < _firstHelloNs)) return;
            bool retryable = message.Bool("retryable"), fatal = message.Bool("fatal");
            // In greeting these answer what was said before the hello.
            if (!Open && (message.ContainsKey("seq") || (code == "state" && retryable))) return;
            Refusal = LastError;
            if (code == "instruction" && _told != null && _instruction != null && _instruction != _told)
            {
                // Said again in a later hello it would be refused for good: the one before goes on.
                _instruction = _told;
                if (!Open)
                {
                    _greeted = false;
                    _helloNs = nowNs;
                    return;
                }
            }
            bool unknown = code == "session" || (Open && code == "state" && retryable);
            if (!Open && code == "state" && !retryable && !fatal) Leaves = "the server has another session on this connection";
            else if (!retryable && (fatal || !(Open || unknown))) End("The server refused: " + LastError);
            else if (unknown || fatal)
            {
                // Live: this connection is new to the server, so resume. Resuming: nobody knows the session, so anew.
                bool first = !Open && _known;
                if (!Open || fatal) _known = false;
                if (fatal) Begin(Rule.ServerLeft(), null, "session_ended");
                Lost();
                if (!unknown) Later(nowNs);
                else _helloNs = first ? nowNs : Math.Max(nowNs, _saidHelloNs + BetweenHellosNs);
            }
            else if (!Open) Later(nowNs);
        }

        private void HearBye(RtMap message, long nowNs)
        {
            string session = message.Text("session");
            if (session != null && session != _token)
            {
                Counts.Ignored++;
                return;
            }
            if (!Options.Persist && !Several)
            {
                End("The server ended the session (" + message.Text("reason", "") + ").");
                return;
            }
            _known = false;
            Begin(Rule.ServerLeft(), null, "session_ended");
            Lost();
            Later(nowNs);
            AtOnce = message.Bool("reconnect") && Several;
        }

        /// <summary>This server lets nobody in now: behind GET /connect the next one is tried, a single one is asked again later.</summary>
        private void Later(long nowNs)
        {
            if (Several) Leaves = "the server lets nobody in now";
            _helloNs = nowNs + (long)(_refusedNs * (0.5 + 0.5 * _random.NextDouble()));
            _refusedNs = Math.Min(LongestRefusedNs, 2 * _refusedNs);
        }

        /// <summary>Hands an act to the main thread; one that it has not taken yet gives way.</summary>
        private void Begin(RtStep step, RtAct origin, string cause)
        {
            if (step.Act == RtForce.None) return;
            if (Pending != null)
            {
                Counts.Skipped++;
                Acknowledge(Pending, "expired", null, "superseded before the main thread came");
            }
            RtAct act = origin ?? new RtAct { Tick = -1, SeqObs = -1, StampNs = -1, Confidence = double.NaN };
            act.Kind = step.Act;
            act.Calls = step.Calls;
            act.Attempt = 1;
            act.World = _worlds;
            act.Cause = step.Act == RtForce.Safe ? cause : null;
            Pending = act;
        }
    }
}
