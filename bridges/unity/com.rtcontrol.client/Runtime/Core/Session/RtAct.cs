using System.Collections.Generic;

namespace RtControl
{
    /// <summary>Something that begins now, for the main thread to carry out; of several safe calls there is one for each.</summary>
    public sealed class RtAct
    {
        /// <summary>Call or Safe.</summary>
        public RtForce Kind { get; internal set; }

        /// <summary>Null: there is no safe call; stop in your own way.</summary>
        public RtCall Call { get; internal set; }

        /// <summary>Of the server's message; -1 where the client itself began it.</summary>
        public long Tick { get; internal set; }

        /// <summary>The observation that it answers; -1 where there is none.</summary>
        public long SeqObs { get; internal set; }

        /// <summary>When that observation was captured, on our clock; -1 where there is none.</summary>
        public long StampNs { get; internal set; }

        /// <summary>0 to 1, of the decision's least certain part; NaN where it was not told.</summary>
        public double Confidence { get; internal set; }

        /// <summary>Why safe: the server's cause, or expired, refused, failed, server_lost, session_ended,
        /// new_session.</summary>
        public string Cause { get; internal set; }

        /// <summary>1, and greater where a safe call failed and is tried again.</summary>
        public int Attempt { get; internal set; }

        /// <summary>All of them; none: stop in your own way.</summary>
        internal IList<RtCall> Calls;

        internal string Token;
        internal long Epoch;
        internal bool Acknowledge;
        internal long World; // how many resets there were before

        internal RtAct Of(RtCall call)
        {
            var one = (RtAct)MemberwiseClone();
            one.Call = call;
            return one;
        }
    }
}
