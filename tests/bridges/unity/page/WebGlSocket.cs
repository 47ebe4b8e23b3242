using System;
using System.Collections.Generic;
using System.IO;
using System.Net.Sockets;
using System.Text;

namespace RtControl.Unity
{
    /// <summary>In place of the package's WebGlSocket.cs: the same functions, run by host.mjs (its port is in RTCONTROL_PAGE).</summary>
    internal static class WebGlSocket
    {
        private static readonly Stream Page = new TcpClient("127.0.0.1", int.Parse(Environment.GetEnvironmentVariable("RTCONTROL_PAGE"))) { NoDelay = true }.GetStream();
        private static readonly StreamReader Answers = new StreamReader(Page, new UTF8Encoding(false));

        public static int RtControlSocketOpen(string url, string protocols) { return Call("RtControlSocketOpen", null, Text(url), Text(protocols)); }
        public static int RtControlSocketState(int handle) { return Call("RtControlSocketState", null, handle); }
        public static int RtControlSocketSend(int handle, byte[] text, int length) { return Call("RtControlSocketSend", text, handle, Bytes(text), length); }
        public static int RtControlSocketWaiting(int handle) { return Call("RtControlSocketWaiting", null, handle); }
        public static int RtControlSocketNext(int handle) { return Call("RtControlSocketNext", null, handle); }
        public static void RtControlSocketTake(int handle, byte[] into, int size) { Call("RtControlSocketTake", into, handle, Bytes(into), size); }
        public static int RtControlSocketWhy(int handle, byte[] into, int size) { return Call("RtControlSocketWhy", into, handle, Bytes(into), size); }
        public static void RtControlSocketClose(int handle) { Call("RtControlSocketClose", null, handle); }

        private static RtMap Text(string text)
        {
            return new RtMap { { "text", text } };
        }

        private static RtMap Bytes(byte[] bytes)
        {
            return new RtMap { { "bytes", Convert.ToBase64String(bytes) } };
        }

        private static int Call(string name, byte[] into, params object[] arguments)
        {
            byte[] line = JsonWriter.Text(new RtMap { { "name", name }, { "args", new List<object>(arguments) } });
            Page.Write(line, 0, line.Length);
            Page.WriteByte((byte)'\n');
            var answer = (RtMap)JsonReader.Read(Encoding.UTF8.GetBytes(Answers.ReadLine()));
            string buffer = answer.Text("buffer");
            if (into != null && buffer != null) Convert.FromBase64String(buffer).CopyTo(into, 0);
            return (int)answer.Long("result");
        }
    }
}
