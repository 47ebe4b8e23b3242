using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// When to look at the world, so that the observation arrives just in time for the server's next tick
    /// (docs/protocol.md, section 6). It learns each observation's way: from the instant when it was due, by our clock, to
    /// its arrival, by the server's. Pure: the caller brings the time. Not thread-safe.
    /// </summary>
    internal sealed class PhaseLock
    {
        private const int Kept = 64, Least = 8;
        private const long Ms = 1000000L, YoungNs = 10000 * Ms, FirstNs = 5 * Ms, MarginNs = Ms;

        // What was there so long before a tick was there for it.
        private const long HandoverNs = 5 * Ms;

        private struct Way
        {
            public long LearntNs, Ns;
        }

        private readonly Queue<Way> _ways = new Queue<Way>();
        private readonly Queue<long> _order = new Queue<long>();
        private readonly Dictionary<long, long> _begun = new Dictionary<long, long>();
        private long? _dueNs, _aimedNs, _takenNs;
        private long _learnt = -1;

        /// <summary>
        /// The instant to look next, the same one until then; null where neither a way nor the clocks' offset is known.
        /// <paramref name="releaseNs"/>: any tick of the session.
        /// </summary>
        public long? Next(long releaseNs, long periodNs, ClockOffset offset, long nowNs)
        {
            long? leadNs = LeadNs(periodNs, offset, nowNs);
            if (leadNs == null) return null;
            long sinceNs = nowNs + leadNs.Value - releaseNs;
            long aimedNs = nowNs + leadNs.Value - Modulo(sinceNs, periodNs) + periodNs;
            if (_takenNs != null && Math.Abs(aimedNs - _takenNs.Value) < (periodNs + 1) / 2) aimedNs += periodNs;
            _aimedNs = aimedNs;
            _dueNs = aimedNs - leadNs;
            return _dueNs;
        }

        /// <summary>An observation is sent.</summary>
        public void Observed(long seq, long periodNs, long nowNs)
        {
            long begunNs = nowNs;
            if (_dueNs != null && nowNs >= _dueNs && nowNs - _dueNs < periodNs)
            {
                begunNs = _dueNs.Value;
                _takenNs = _aimedNs;
                _dueNs = null;
            }
            _begun[seq] = begunNs;
            _order.Enqueue(seq);
            if (_order.Count > Kept) _begun.Remove(_order.Dequeue());
        }

        /// <summary>A fresh call tells when its observation arrived; of one that was decided again there is nothing to learn.</summary>
        public void Heard(RtMap call, long periodNs, long nowNs)
        {
            RtMap timing = call.Map("timing");
            long seq = call.Long("seq_obs", -1), begunNs;
            if (call.Text("status") != "fresh" || timing == null || timing.Get("age_ms") == null) return;
            if (!call.ContainsKey("release_ns") || seq <= _learnt) return;
            _learnt = seq;
            if (!_begun.TryGetValue(seq, out begunNs)) return;
            _begun.Remove(seq);
            long arrivedNs = call.Long("t_server_ns") - (long)Math.Round(timing.Number("age_ms") * Ms);
            long releaseNs = call.Long("release_ns");
            long beforeNs = releaseNs - periodNs;
            // A plan's step, say: this tick is not the first that had it.
            bool older = arrivedNs + HandoverNs < beforeNs;
            // Else the tick before did not have it yet, whatever its stamp of arrival says.
            Keep(_ways, new Way { LearntNs = nowNs, Ns = (older ? arrivedNs : Math.Max(arrivedNs, beforeNs)) - begunNs });
        }

        private long? LeadNs(long periodNs, ClockOffset offset, long nowNs)
        {
            var ways = new List<long>();
            foreach (Way way in _ways)
                if (nowNs - way.LearntNs <= YoungNs) ways.Add(way.Ns);
            if (ways.Count == 0)
            {
                offset.Look(nowNs);
                return offset.Known ? offset.OffsetNs + offset.RttNs / 2 + FirstNs : (long?)null;
            }
            ways.Sort();
            int n = ways.Count, best = n - 1;
            if (n < Least) return ways[best] + MarginNs;
            // Mean age: the way, and a whole period for the share of those that come later; of equal ones the longer way.
            for (int i = n - 1; i >= 0; i--)
                if (Cost(ways, i, periodNs) < Cost(ways, best, periodNs)) best = i;
            return ways[best] + MarginNs;
        }

        private static long Cost(List<long> ways, int i, long periodNs)
        {
            return ways.Count * (ways[i] - ways[0]) + (ways.Count - 1 - i) * periodNs;
        }

        private static long Modulo(long value, long by)
        {
            long rest = value % by;
            return rest < 0 ? rest + by : rest;
        }

        private static void Keep<T>(Queue<T> queue, T one)
        {
            queue.Enqueue(one);
            if (queue.Count > Kept) queue.Dequeue();
        }
    }
}
