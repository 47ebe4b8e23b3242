using System.Collections.Generic;

namespace RtControl
{
    /// <summary>Every message of protocol 1.1 and its fields (docs/protocol.md, section 4).</summary>
    internal static class Messages
    {
        public const int Major = 1;
        public const int Minor = 1;

        private static readonly Dictionary<string, int> Sizes = new Dictionary<string, int>
        {
            { "b1", 1 }, { "i1", 1 }, { "u1", 1 }, { "i2", 2 }, { "u2", 2 }, { "f2", 2 },
            { "i4", 4 }, { "u4", 4 }, { "f4", 4 }, { "i8", 8 }, { "u8", 8 }, { "f8", 8 },
        };

        private static readonly Kind Call = Schema.RecordOf(new Record()
            .Need("name", Schema.Text(1, 256)).May("arguments", Schema.AnyMap, new RtMap()));

        private static readonly Kind SafeCalls = Schema.ListOf(Call, 1, 16);

        private static readonly Kind Program = Schema.RecordOf(new Record()
            .Need("name", Schema.Text(1, 64)).May("version", Schema.Text(0, 64)).May("language", Schema.Text(0, 64)));

        private static readonly Kind Pacing = Schema.OneOf("server", "client");
        private static readonly Kind OnMiss = Schema.OneOf("hold", "safe");
        private static readonly Kind Long = Schema.Text(0, 65536);
        private static readonly Kind Names = Schema.ListOf(Schema.Text(1, 64), 0, 32);

        private static readonly Record ArrayFields = new Record()
            .Need("name", Schema.Text(1, 64))
            .Need("dtype", Schema.OneOf("b1", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8"))
            .Need("shape", Schema.ListOf(Schema.Whole(0, 1 << 30), 0, 8))
            .Need("data", (v, path) => v is byte[] ? v : throw Schema.Wrong(path, "must be bytes"));

        private static readonly Dictionary<string, Record> All = new Dictionary<string, Record>
        {
            {
                "hello", new Record()
                    .Need("type", Schema.Free).Need("protocol", Schema.ListOf(Schema.Count, 2, 2))
                    .Need("client", Program).Need("t_client_ns", Schema.Instant).May("capabilities", Names)
                    .May("agent", Schema.Text(0, 256)).May("tools", Schema.ListOf(Schema.AnyMap, 1, 64))
                    .May("instruction", Long).May("model", Schema.Text(0, 256)).May("safe_call", Call)
                    .May("safe_calls", SafeCalls).May("pacing", Pacing).May("hz", Schema.Number(0.001, 10000)).May("deadline_ms", Schema.Duration)
                    .May("ttl_ms", Schema.Duration).May("max_age_ms", Schema.Duration).May("on_miss", OnMiss)
                    .May("hold_ms", Schema.Duration).May("robot", Schema.Text(1, 64)).May("resume", Schema.Token)
            },
            {
                "welcome", new Record()
                    .Need("type", Schema.Free).Need("protocol", Schema.ListOf(Schema.Count, 0, 4096))
                    .Need("server", Program).Need("session", Schema.Token).Need("resumed", Schema.Bool)
                    .Need("epoch", Schema.Count).Need("t_client_ns", Schema.Instant)
                    .Need("t_server_ns", Schema.Instant)
                    .May("capabilities", Schema.ListOf(Schema.Text(1, 64), 0, 4096)).May("agent", Schema.Any)
                    .Need("tools", Schema.ListOf(Schema.AnyMap, 0, 4096)).Need("instruction", Schema.Any)
                    .Need("model", Schema.Any).Need("model_trained_on_tools", Schema.Bool).May("safe_call", Call)
                    .May("safe_calls", SafeCalls).May("trained", Schema.Bool).May("release_ns", Schema.Instant)
                    .Need("pacing", Pacing).Need("hz", Schema.Number(0.001, 10000))
                    .Need("period_ms", Schema.Duration).Need("deadline_ms", Schema.Duration)
                    .Need("ttl_ms", Schema.Duration).Need("max_age_ms", Schema.Duration).Need("on_miss", OnMiss)
                    .Need("hold_ms", Schema.Duration).Need("heartbeat_ms", Schema.Duration)
                    .Need("session_grace_s", Schema.Number(0, double.MaxValue))
                    .Need("limits", Schema.MapOf(Schema.AnyWhole))
                    .May("warnings", Schema.ListOf(Schema.Any, 0, 4096))
            },
            {
                "observe", Session().Need("seq", Schema.Count).Need("epoch", Schema.Count)
                    .Need("t_ns", Schema.Instant).May("text", Long).May("data", Schema.AnyMap)
                    .May("arrays", Schema.ListOf(Array, 0, 16))
            },
            {
                "call", Session().Need("tick", Schema.Count).Need("epoch", Schema.Count)
                    .May("seq_obs", Schema.Count).May("t_obs_ns", Schema.Instant)
                    .Need("status", Schema.OneOf("fresh", "held", "safe")).May("call", Call)
                    .May("calls", SafeCalls).May("release_ns", Schema.Instant).Need("ttl_ms", Schema.Duration).Need("deadline_ns", Schema.Instant)
                    .Need("t_server_ns", Schema.Instant).May("confidence", Schema.Number(0, 1))
                    .May("cause", Schema.Any)
                    .May("timing", Schema.RecordOf(new Record().May("age_ms", Schema.Duration)
                        .May("decide_ms", Schema.Duration).May("late_ms", Schema.Duration)))
            },
            {
                "executed", Session().Need("tick", Schema.Count).Need("epoch", Schema.Count)
                    .Need("outcome", Schema.OneOf("executed", "expired", "failed", "refused"))
                    .Need("t_ns", Schema.Instant).May("result", Long).May("error", Long)
            },
            {
                "instruct", Session().Need("instruction", Long).May("said", Long).May("by", Schema.Any)
                    .May("confidence", Schema.Number(0, 1))
            },
            {
                "reset", Session().Need("epoch", Schema.Count).May("ended", Schema.RecordOf(new Record()
                    .May("seed", Schema.AnyWhole).May("return", Schema.Number(double.MinValue, double.MaxValue))
                    .May("success", Schema.Bool).May("seconds", Schema.Number(0, double.MaxValue))))
            },
            { "ping", Plain().Need("id", Schema.Count).Need("t_ns", Schema.Instant) },
            {
                "pong", Plain().Need("id", Schema.Count).Need("t_ping_ns", Schema.Instant)
                    .Need("t_received_ns", Schema.Instant).Need("t_sent_ns", Schema.Instant)
            },
            {
                "error", Plain().Need("code", Schema.Any).Need("message", Schema.Any).May("remedy", Schema.Any)
                    .May("field", Schema.Any).May("seq", Schema.Count).May("t_client_ns", Schema.Instant).May("retryable", Schema.Bool)
                    .May("fatal", Schema.Bool).May("dropped", Schema.Count)
            },
            { "bye", Plain().May("session", Schema.Token).May("reason", Schema.Text(0, 1024)).May("reconnect", Schema.Bool) },
        };

        /// <summary>The checked copy of a message, without nulls and unknown fields. Throws WireException.</summary>
        public static RtMap Check(RtMap message)
        {
            Record fields;
            string type = message.Text("type", "");
            if (!All.TryGetValue(type, out fields)) throw Schema.Wrong("type", "is no message of protocol 1.1");
            if (type == "hello") RefuseOtherVersion(message.List("protocol"));
            RtMap kept = fields.Check(message, "");
            bool shows = kept.ContainsKey("text") || kept.ContainsKey("data")
                || kept.List("arrays") is List<object> arrays && arrays.Count > 0;
            if (type == "observe" && !shows) throw Schema.Wrong("text", "one of text, data and arrays is needed");
            return kept;
        }

        private static void RefuseOtherVersion(List<object> protocol)
        {
            if (protocol == null || protocol.Count == 0) return;
            foreach (object part in protocol)
                if (!(part is long || part is double) || System.Convert.ToDouble(part) % 1 != 0 || System.Convert.ToDouble(part) < 0) return;
            double major = System.Convert.ToDouble(protocol[0]);
            double minor = protocol.Count > 1 ? System.Convert.ToDouble(protocol[1]) : Minor;
            if (major != Major || minor < Minor)
                throw new WireException(WireException.Version, "protocol", "version " + major + "." + minor + " is not spoken");
        }

        private static object Array(object value, string path)
        {
            RtMap array = ArrayFields.Check((RtMap)Schema.AnyMap(value, path), path);
            // As a double: eight dimensions of 2^30 overflow any integer, and equality with an int is all that counts.
            double size = Sizes[array.Text("dtype")];
            foreach (object n in array.List("shape")) size *= (long)n;
            int has = ((byte[])array["data"]).Length;
            if (size != has) throw Schema.Wrong(path, "needs " + size + " bytes, has " + has);
            return array;
        }

        private static Record Plain()
        {
            return new Record().Need("type", Schema.Free);
        }

        private static Record Session()
        {
            return Plain().Need("session", Schema.Token);
        }
    }
}
