#pragma once

int filter();
