using RtControl.Unity;
using UnityEngine;

namespace RtControl.Samples
{
    /// <summary>Put it on an empty GameObject of a new scene (with its camera), run `rtcontrol serve --model random`, press Play.</summary>
    public sealed class RoverScene : MonoBehaviour
    {
        public string endpoint = "tcp://127.0.0.1:5555";
        public string instruction = "Drive to the target.";

        private void Start()
        {
            // The server goes on while another window has the focus.
            Application.runInBackground = true;
            GameObject.CreatePrimitive(PrimitiveType.Plane).transform.localScale = new Vector3(5f, 1f, 5f);
            GameObject sphere = GameObject.CreatePrimitive(PrimitiveType.Sphere);
            sphere.transform.position = new Vector3(6f, 0.5f, 10f);
            GameObject cube = GameObject.CreatePrimitive(PrimitiveType.Cube);
            cube.transform.position = new Vector3(0f, 0.5f, 0f);
            cube.SetActive(false);
            cube.AddComponent<Rover>().target = sphere.transform;
            var client = cube.AddComponent<RtControlClient>();
            client.Endpoint = endpoint;
            client.Instruction = instruction;
            // Enabled last, when everything is set: OnEnable connects.
            cube.SetActive(true);
        }
    }
}
