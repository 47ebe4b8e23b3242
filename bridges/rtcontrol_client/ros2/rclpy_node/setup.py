"""colcon's build of `ros2 run rtcontrol_bridge bridge`, which is the client's program; the client comes from pip."""

from setuptools import setup

setup(
    name="rtcontrol_bridge",
    version="0.1.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/rtcontrol_bridge"]),
        ("share/rtcontrol_bridge", ["package.xml"]),
        ("share/rtcontrol_bridge/launch", ["launch/bridge.launch.py"]),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
    description="Drives a robot by an rtcontrol server",
    license="Apache-2.0",
    entry_points={"console_scripts": ["bridge = rtcontrol_client.ros2.cli:main"]},
)
