using System;
using System.Collections.Generic;
using System.IO;

namespace RtControl
{
    /// <summary>Key files as `rtcontrol keys new NAME` writes them (ZeroMQ's certificate format).</summary>
    public static class CurveKeys
    {
        /// <summary>
        /// For <see cref="RtOptions.Transport"/>: CURVE with this client's `.key_secret` file and the server's `.key`
        /// file (default: `server.key` beside it). Throws WireException for files that hold no key.
        /// </summary>
        public static Func<string, IRtTransport> Use(string secretFile, string serverFile = null)
        {
            string known = Read(secretFile, "public-key"), secret = Read(secretFile, "secret-key");
            string beside = Path.Combine(Path.GetDirectoryName(secretFile) ?? "", "server.key");
            string server = Read(serverFile ?? beside, "public-key");
            return endpoint => new LibZmqTransport(endpoint, server, known, secret);
        }

        private static string Read(string path, string name)
        {
            foreach (string line in Lines(path))
            {
                string[] sides = line.Split(new[] { '=' }, 2);
                if (sides.Length < 2 || sides[0].Trim() != name) continue;
                string key = sides[1].Trim().Trim('"');
                if (key.Length == 40) return key;
            }
            // The path is told, what stands in it never.
            throw Wrong("no " + name + " in " + path + ": make keys with `rtcontrol keys new NAME`");
        }

        private static IEnumerable<string> Lines(string path)
        {
            try
            {
                return File.ReadAllLines(path);
            }
            catch (Exception error) when (error is IOException || error is UnauthorizedAccessException
                || error is ArgumentException || error is NotSupportedException)
            {
                throw Wrong(path + " cannot be read (" + error.GetType().Name + ")");
            }
        }

        private static WireException Wrong(string what)
        {
            return new WireException(WireException.Invalid, "keys", what);
        }
    }
}
