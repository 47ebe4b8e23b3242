using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl
{
    /// <summary>Greeting and READY of ZMTP 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23).</summary>
    internal static class ZmtpHandshake
    {
        public const int GreetingLength = 64;
        private const int MechanismAt = 12;
        private const int MechanismLength = 20;

        public static byte[] Greeting()
        {
            var greeting = new byte[GreetingLength];
            greeting[0] = 0xff;
            greeting[9] = 0x7f;
            greeting[10] = 3;
            Encoding.ASCII.GetBytes("NULL", 0, 4, greeting, MechanismAt);
            return greeting;
        }

        /// <summary>Throws PeerException, as soon as the bytes that are there tell that the peer is none of ours.</summary>
        public static void CheckGreeting(byte[] bytes, int offset, int count)
        {
            if (count > 0 && bytes[offset] != 0xff || count > 9 && (bytes[offset + 9] & 1) == 0)
                throw new PeerException("the peer speaks no ZeroMQ");
            if (count > 10 && bytes[offset + 10] < 3) throw new PeerException("the peer's ZeroMQ is older than 4.0");
            if (count < GreetingLength) return;
            string mechanism = Encoding.ASCII.GetString(bytes, offset + MechanismAt, MechanismLength).TrimEnd('\0');
            if (mechanism == "CURVE") throw new PeerException("the server wants CURVE keys, and this client has none: run `serve` without --keys in a trusted network");
            if (mechanism != "NULL") throw new PeerException("the peer wants another security mechanism");
        }

        /// <summary>The body of our READY command.</summary>
        public static byte[] Ready()
        {
            var body = new List<byte>();
            Name(body, "READY");
            Property(body, "Socket-Type", "DEALER");
            Property(body, "Identity", "");
            return body.ToArray();
        }

        /// <summary>Throws PeerException where the body is no READY of a socket that a DEALER may talk to.</summary>
        public static void CheckReady(byte[] body)
        {
            if (CommandName(body) == "ERROR") throw new PeerException("the server refused the connection");
            if (CommandName(body) != "READY") throw new PeerException("no READY after the greeting");
            int at = 6;
            while (at < body.Length)
            {
                int nameLength = body[at];
                if (at + 1 + nameLength + 4 > body.Length) throw new PeerException("a READY that ends in the middle");
                string name = Encoding.ASCII.GetString(body, at + 1, nameLength);
                at += 1 + nameLength;
                long length = (long)body[at] << 24 | (long)body[at + 1] << 16 | (long)body[at + 2] << 8 | body[at + 3];
                at += 4;
                if (length > body.Length - at) throw new PeerException("a READY that ends in the middle");
                if (string.Equals(name, "Socket-Type", StringComparison.OrdinalIgnoreCase))
                {
                    string type = Encoding.ASCII.GetString(body, at, (int)length);
                    if (type != "ROUTER" && type != "DEALER" && type != "REP")
                        throw new PeerException("the peer is a " + type.Substring(0, Math.Min(type.Length, 16)) + " socket, no ROUTER");
                }
                at += (int)length;
            }
        }

        /// <summary>The PONG body that answers a PING's: its context goes back, its time-to-live does not.</summary>
        public static byte[] Pong(byte[] ping)
        {
            const int context = 1 + 4 + 2;
            var body = new List<byte>();
            Name(body, "PONG");
            for (int i = context; i < ping.Length && i < context + 16; i++) body.Add(ping[i]);
            return body.ToArray();
        }

        public static string CommandName(byte[] body)
        {
            if (body.Length == 0 || body[0] > body.Length - 1) return "";
            return Encoding.ASCII.GetString(body, 1, body[0]);
        }

        private static void Name(List<byte> body, string name)
        {
            body.Add((byte)name.Length);
            body.AddRange(Encoding.ASCII.GetBytes(name));
        }

        private static void Property(List<byte> body, string name, string value)
        {
            Name(body, name);
            body.AddRange(new byte[] { 0, 0, 0, (byte)value.Length });
            body.AddRange(Encoding.ASCII.GetBytes(value));
        }
    }
}
