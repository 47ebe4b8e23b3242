using System;
using System.Collections.Generic;

namespace RtControl
{
    public enum RtForce
    {
        /// <summary>Nothing yet in this episode: its world is at rest.</summary>
        None,
        Call,
        Safe,

        /// <summary>Safe is to be in force, but a safe call failed: it is tried again with each Pump.</summary>
        Failing,
    }

    /// <summary>What to do after an event. Nothing where <see cref="Act"/> is None.</summary>
    public struct RtStep
    {
        /// <summary>Something begins now: all of <see cref="Calls"/> in order; where there are none, stop in your own way.</summary>
        public RtForce Act;
        public IList<RtCall> Calls;

        /// <summary>The message's call was too old: it is to be acknowledged as expired, never executed.</summary>
        public bool Expired;

        /// <summary>Whether the message's tick is to be acknowledged.</summary>
        public bool Acknowledge;
    }

    /// <summary>
    /// What is in force now: the time-to-live rule (docs/protocol.md, section 7). Pure: the caller brings the time of
    /// its monotonic clock. Not thread-safe.
    /// </summary>
    public sealed class InForce
    {
        /// <summary>Of <see cref="ExpiresNs"/>: no end.</summary>
        public const long Never = long.MaxValue;

        public InForce(long epoch, IList<RtCall> safeCalls)
        {
            SafeCalls = safeCalls;
            LastTick = -1;
            Reset(epoch);
        }

        public long Epoch { get; private set; }
        public IList<RtCall> SafeCalls { get; set; }

        /// <summary>No call outlives its arrival by more, whatever its message says; 0: no such limit.</summary>
        public double OwnTtlMs { get; set; }

        public RtForce Kind { get; private set; }

        /// <summary>What is in force; null where that is nothing, or several safe calls.</summary>
        public RtCall Call { get; private set; }

        /// <summary>All that is in force, in order; empty where nothing is.</summary>
        public IList<RtCall> Calls { get; private set; }

        /// <summary>When the observation was captured by which the call is in force, on our clock; -1 where none is.</summary>
        public long StampNs { get; private set; }

        /// <summary>The last instant at which the call is in force.</summary>
        public long ExpiresNs { get; private set; }

        public long LastTick { get; private set; }

        /// <summary>Too old to be executed? A stamp that is absent (-1) or of the future belongs to no observation of ours.</summary>
        public static bool IsExpired(long tObsNs, double ttlMs, long nowNs)
        {
            if (tObsNs < 0 || nowNs < tObsNs) return true;
            return nowNs > EndNs(tObsNs, ttlMs);
        }

        /// <summary>A new episode: nothing is in force in it yet. Ticks go on.</summary>
        public void Reset(long epoch)
        {
            Epoch = epoch;
            Set(RtForce.None, null, Never);
        }

        /// <summary>The welcome of a new session. A call of the one before ends: nobody would end it later.</summary>
        public RtStep NewSession(long epoch, IList<RtCall> safeCalls)
        {
            SafeCalls = safeCalls;
            RtStep step = Kind == RtForce.Call ? ActSafe(null) : new RtStep();
            Reset(epoch);
            LastTick = -1;
            return step;
        }

        /// <summary>A checked `call` message arrived.</summary>
        public RtStep Receive(RtMap message, long nowNs)
        {
            long tick = message.Long("tick");
            if (message.Long("epoch") != Epoch || tick <= LastTick) return Look(nowNs);
            LastTick = tick;
            RtCall call = RtCall.From(message.Map("call"));
            string status = message.Text("status");
            if (status == "safe")
            {
                if (Kind == RtForce.Safe) return new RtStep();
                RtStep safe = ActSafe(RtCall.Safe(message, "calls", "call"));
                safe.Acknowledge = true;
                return safe;
            }
            if (status == "held") return Look(nowNs);
            long tObsNs = message.Long("t_obs_ns", -1);
            double ttlMs = message.Number("ttl_ms");
            if (IsExpired(tObsNs, ttlMs, nowNs))
            {
                RtStep late = Look(nowNs);
                late.Expired = late.Acknowledge = call != null;
                return late;
            }
            if (call != null)
            {
                Set(RtForce.Call, call, Math.Min(EndNs(tObsNs, ttlMs), EndNs(nowNs, OwnTtlMs)));
                StampNs = tObsNs;
                return new RtStep { Act = RtForce.Call, Calls = new[] { call }, Acknowledge = true };
            }
            // A decision to go on does not revive what has run out, and renews by a newer observation only.
            RtStep step = Look(nowNs);
            if (step.Act == RtForce.None && Kind == RtForce.Call && tObsNs > StampNs)
            {
                ExpiresNs = Math.Min(EndNs(tObsNs, ttlMs), EndNs(nowNs, OwnTtlMs));
                StampNs = tObsNs;
            }
            return step;
        }

        /// <summary>Nothing arrived: has what is in force run out?</summary>
        public RtStep Look(long nowNs)
        {
            return Kind == RtForce.Call && nowNs > ExpiresNs ? ActSafe(null) : new RtStep();
        }

        /// <summary>The server is dead: a call with a time-to-live lives on for it, one without ends now.</summary>
        public RtStep ServerLost()
        {
            return Kind == RtForce.Call && ExpiresNs == Never ? ActSafe(null) : new RtStep();
        }

        /// <summary>The session has ended, by bye or a fatal error.</summary>
        public RtStep ServerLeft()
        {
            return Kind == RtForce.Safe ? new RtStep() : ActSafe(null);
        }

        private static long EndNs(long tObsNs, double ttlMs)
        {
            if (ttlMs == 0) return Never;
            var ttlNs = (long)(ttlMs * 1e6);
            return tObsNs > Never - ttlNs ? Never : tObsNs + ttlNs;
        }

        private RtStep ActSafe(IList<RtCall> calls)
        {
            if (calls == null || calls.Count == 0) calls = SafeCalls;
            Set(RtForce.Safe, calls.Count == 1 ? calls[0] : null, Never);
            Calls = calls;
            return new RtStep { Act = RtForce.Safe, Calls = calls };
        }

        private void Set(RtForce kind, RtCall call, long untilNs)
        {
            Kind = kind;
            Call = call;
            Calls = call == null ? new RtCall[0] : new[] { call };
            ExpiresNs = untilNs;
            StampNs = -1;
        }
    }
}
