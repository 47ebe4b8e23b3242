using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace RtControl
{
    /// <summary>A look at a client for people: an inspector, an overlay. All of one instant.</summary>
    public sealed class RtFigures
    {
        private const int MostShown = 120;

        internal RtFigures(Talk talk, string trouble, string address, long nowNs)
        {
            Connected = talk.Open;
            Ended = talk.Ended != null;
            Trouble = trouble;
            Address = address;
            Force = talk.Force;
            InForce = Words(talk.Rule.Calls);
            bool runs = Force == RtForce.Call;
            AgeMs = runs && talk.Rule.StampNs >= 0 ? (nowNs - talk.Rule.StampNs) / 1e6 : double.NaN;
            LeftMs = runs && talk.Rule.ExpiresNs != RtControl.InForce.Never ? (talk.Rule.ExpiresNs - nowNs) / 1e6 : double.NaN;
            Counts = talk.Counts;
            WaitedMs = talk.Phase.WaitedMs;
            Ticks = Counts.Fresh + Counts.Held + Counts.Safe;
            OnTimeShare = Ticks == 0 ? double.NaN : (double)Counts.Fresh / Ticks;
            Misses = Sorted(talk.Misses);
            Model = talk.Welcome == null ? null : talk.Welcome.Model;
        }

        /// <summary>Whether the session is live now.</summary>
        public bool Connected { get; private set; }

        /// <summary>Whether it has ended for good: nothing is tried any more.</summary>
        public bool Ended { get; private set; }

        /// <summary>Why there is no connection; null while there is one.</summary>
        public string Trouble { get; private set; }

        public string Address { get; private set; }

        /// <summary>The server's model; null before the first welcome.</summary>
        public string Model { get; private set; }

        public RtForce Force { get; private set; }

        /// <summary>What is in force, such as <c>steer(angle: 10)</c>; several safe calls with commas; empty where nothing is.</summary>
        public string InForce { get; private set; }

        /// <summary>How old the observation is by which the call is in force; NaN where no call is.</summary>
        public double AgeMs { get; private set; }

        /// <summary>How long the call is in force yet without another one; NaN where no call is, or without an end.</summary>
        public double LeftMs { get; private set; }

        /// <summary>How long observations wait at the server for their tick, the middle one of the newest; NaN: not known.</summary>
        public double WaitedMs { get; private set; }

        /// <summary>Ticks of which the server told: fresh, held and safe ones, of all sessions.</summary>
        public long Ticks { get; private set; }

        /// <summary>0 to 1: ticks with a decision in time; NaN where there was no tick yet.</summary>
        public double OnTimeShare { get; private set; }

        /// <summary>The other ticks by the server's cause, the most frequent first; an empty cause was not told.</summary>
        public IList<KeyValuePair<string, long>> Misses { get; private set; }

        public RtCounts Counts { get; private set; }

        /// <summary>All of it as pairs of a name and words.</summary>
        public IList<KeyValuePair<string, string>> Lines()
        {
            var lines = new List<KeyValuePair<string, string>>();
            Add(lines, "Connection", Connected ? "connected to " + Address : Ended ? "ended" : "connecting to " + Address);
            if (Trouble != null) Add(lines, "Trouble", Trouble);
            if (Model != null) Add(lines, "Model", Model);
            Add(lines, "In force", Force.ToString().ToLowerInvariant() + (InForce.Length > 0 ? ": " + InForce : ""));
            Add(lines, "Age", Ms(AgeMs) + (double.IsNaN(LeftMs) ? "" : ", " + Ms(LeftMs) + " left"));
            Add(lines, "On time", double.IsNaN(OnTimeShare) ? "no tick yet" : Percent(OnTimeShare) + " of " + Text(Ticks) + " ticks");
            if (!double.IsNaN(WaitedMs)) Add(lines, "Observations wait", Ms(WaitedMs));
            foreach (KeyValuePair<string, long> miss in Misses)
                Add(lines, "Missed: " + (miss.Key.Length > 0 ? miss.Key : "no cause told"), Text(miss.Value));
            Add(lines, "Expired", Text(Counts.Expired) + ", gave way " + Text(Counts.Skipped));
            Add(lines, "Carried out", Text(Counts.Executed) + ", failed " + Text(Counts.Failed) + ", refused " + Text(Counts.Refused));
            Add(lines, "Sessions", Text(Counts.Sessions) + ", resumed " + Text(Counts.Resumed));
            return lines;
        }

        private static void Add(List<KeyValuePair<string, string>> lines, string name, string words)
        {
            lines.Add(new KeyValuePair<string, string>(name, words));
        }

        private static List<KeyValuePair<string, long>> Sorted(Dictionary<string, long> misses)
        {
            var sorted = new List<KeyValuePair<string, long>>(misses);
            sorted.Sort((a, b) => a.Value != b.Value ? b.Value.CompareTo(a.Value) : string.CompareOrdinal(a.Key, b.Key));
            return sorted;
        }

        private static string Words(IEnumerable<RtCall> calls)
        {
            var all = new StringBuilder();
            foreach (RtCall call in calls)
            {
                if (all.Length > 0) all.Append(", ");
                all.Append(call.Name).Append('(');
                bool first = true;
                foreach (KeyValuePair<string, object> argument in call.Arguments)
                {
                    all.Append(first ? "" : ", ").Append(argument.Key).Append(": ");
                    all.Append(System.Convert.ToString(argument.Value, CultureInfo.InvariantCulture));
                    first = false;
                }
                all.Append(')');
            }
            if (all.Length <= MostShown) return all.ToString();
            int most = char.IsHighSurrogate(all[MostShown - 1]) ? MostShown - 1 : MostShown;
            return all.ToString(0, most) + " (more)";
        }

        private static string Ms(double ms)
        {
            return double.IsNaN(ms) ? "-" : ms.ToString("0", CultureInfo.InvariantCulture) + " ms";
        }

        // Rounded down: 100 % is no share with a miss in it.
        private static string Percent(double share)
        {
            return (System.Math.Floor(share * 1000) / 10).ToString("0.0", CultureInfo.InvariantCulture) + " %";
        }

        private static string Text(long count)
        {
            return count.ToString(CultureInfo.InvariantCulture);
        }
    }
}
