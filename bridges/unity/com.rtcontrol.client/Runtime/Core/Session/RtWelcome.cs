using System.Collections.Generic;

namespace RtControl
{
    /// <summary>What the server put in force (docs/protocol.md, `welcome`).</summary>
    public sealed class RtWelcome
    {
        internal RtWelcome(RtMap message)
        {
            Message = message;
            Token = message.Text("session");
        }

        /// <summary>The whole message. Its `session` is a secret: who has it can take the session over.</summary>
        internal RtMap Message { get; private set; }

        internal string Token { get; private set; }

        public bool Resumed { get { return Message.Bool("resumed"); } }
        public string Server { get { return (Message.Map("server").Text("name") + " " + Message.Map("server").Text("version")).Trim(); } }
        public string Instruction { get { return Message.Text("instruction"); } }
        public string Model { get { return Message.Text("model"); } }

        /// <summary>
        /// Whether the model was trained on exactly these tools; false: expect legal calls, not skilled ones. Null: not
        /// known, or nothing that is trained.
        /// </summary>
        public bool? Trained { get { return Message.Get("trained") as bool?; } }

        /// <summary>Whether the server speaks this version of the protocol, or a later minor one.</summary>
        internal bool Speaks(long major, long minor)
        {
            List<object> protocol = Message.List("protocol");
            return protocol.Count > 1 && (long)protocol[0] == major && (long)protocol[1] >= minor;
        }

        /// <summary>The same, where false is also what is not known.</summary>
        public bool ModelTrainedOnTools { get { return Message.Bool("model_trained_on_tools"); } }

        public List<object> Tools { get { return Message.List("tools"); } }
        public string Pacing { get { return Message.Text("pacing"); } }
        public double Hz { get { return Message.Number("hz"); } }
        public double PeriodMs { get { return Message.Number("period_ms"); } }
        public double DeadlineMs { get { return Message.Number("deadline_ms"); } }
        public double TtlMs { get { return Message.Number("ttl_ms"); } }
        public double HeartbeatMs { get { return Message.Number("heartbeat_ms"); } }

        /// <summary>For people: show them.</summary>
        public List<object> Warnings { get { return Message.List("warnings") ?? new List<object>(); } }
    }
}
